// SPDX-License-Identifier: BSD-2-Clause

package chosen

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/goverbs/goverbs/rdma/native"
	"github.com/goverbs/goverbs/runtime"
)

func TestReleaseIn(t *testing.T) {
	const anonymous = "7f10-7f20 rw-p 00000000 00:00 0\n"
	for name, want := range map[string]string{
		"/usr/lib/x86_64-linux-gnu/libibverbs.so.1.14.44.0": "44.0",
		"/opt/libibverbs.so.1.15.61.2":                      "61.2",
		"/opt/libibverbs.so.1":                              "",
		"/opt/librdmacm.so.1.3.44.0":                        "",
	} {
		assert.Equal(t, want, releaseIn(anonymous+"7f30-7f40 r-xp 00001000 fe:00 1234   "+name+"\n"), name)
	}
	assert.Empty(t, releaseIn(anonymous))
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
