// SPDX-License-Identifier: BSD-2-Clause

package chosen

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/goverbs/goverbs/rdma/native"
	"github.com/goverbs/goverbs/runtime"
)

func TestReleaseIn(t *testing.T) {
	for name, want := range map[string]string{
		"libibverbs.so.1.14.44.0": "44.0",
		"libibverbs.so.1.15.61.2": "61.2",
		"libibverbs.so.1":         "",
		"librdmacm.so.1.3.44.0":   "",
		"":                        "",
	} {
		assert.Equal(t, want, releaseIn(name), name)
	}
}

func TestKindsOfBackends(t *testing.T) {
	for _, c := range []struct {
		backend  runtime.Backend
		software bool
	}{{runtime.Native, false}, {&native.Backend{}, false}, {backend{}, true}} {
		assert.Equal(t, c.software, IsSoftware(c.backend), "%T", c.backend)
	}
	assert.Equal(t, "native", Name(&native.Backend{}))
	assert.Equal(t, "software", Name(backend{}))
	assert.Regexp(t, `^rdma-core( \d+\.\d+)?$`, Name(runtime.Native))
}

type backend struct{}

func (backend) Function(string, string) runtime.Func { return nil }
