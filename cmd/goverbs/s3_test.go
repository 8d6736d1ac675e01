// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

// TestS3Options checks that invalid options are usage errors, or errors that name the option. Package s3rdma/sdktest
// runs the gateway.
func TestS3Options(t *testing.T) {
	code, _, problems := goverbs("s3")
	assert.Equal(t, exitUsage, code)
	assert.Contains(t, problems, "--backend")
	const backend = "--backend=http://127.0.0.1:1"
	code, _, problems = goverbs("s3", backend, "--tls-cert=c")
	assert.Equal(t, exitUsage, code)
	assert.Contains(t, problems, "--tls-key")
	for want, args := range map[string][]string{
		"--backend http":      {"--backend=nonsense", "-d", "soft0"},
		"--metrics HOST:PORT": {backend, "-d", "soft0", "--listen=127.0.0.1:0", "--metrics=nonsense"},
	} {
		code, _, problems := goverbs(append([]string{"s3"}, args...)...)
		assert.Equal(t, exitFailed, code)
		assert.Contains(t, problems, want)
	}
}
