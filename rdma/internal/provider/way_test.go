// SPDX-License-Identifier: BSD-2-Clause

package provider

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/goverbs/goverbs/runtime"
)

func TestProviderName(t *testing.T) {
	for path, want := range map[string]string{
		"/usr/lib/x86_64-linux-gnu/libmlx5.so.1.25.65.0":             "mlx5",
		"/usr/lib/x86_64-linux-gnu/libibverbs/librxe-rdmav34.so":     "rxe",
		"/usr/lib/x86_64-linux-gnu/libibverbs/libbnxt_re-rdmav59.so": "bnxt_re",
		"/usr/lib/libhns.so.1":                                       "hns",
		"/usr/bin/program":                                           "",
		"/usr/lib/library.a":                                         "",
		"":                                                           "",
	} {
		assert.Equal(t, want, providerName(path), path)
	}
}

func TestFileAt(t *testing.T) {
	const maps = `08048000-08049000 r-xp 00000000 08:01 11                                 /usr/bin/old
55d000000000-55d000001000 r-xp 00000000 08:01 12                         /usr/bin/program
7f0000000000-7f0000001000 r--p 00000000 08:01 42                         /usr/lib/lib mlx5.so.1 (deleted)
7f0000001000-7f0000002000 r-xp 00001000 08:01 42                         /usr/lib/libmlx5.so.1.25
7f0000002000-7f0000003000 rw-p 00000000 00:00 0 
7ffc00000000-7ffc00001000 r-xp 00000000 00:00 0                          [vdso]
`
	for address, want := range map[uint64]string{
		0x8048fff:      "/usr/bin/old",
		0x8049000:      "",
		0x55d000000000: "/usr/bin/program",
		0x7f0000000fff: "/usr/lib/lib mlx5.so.1",
		0x7f0000001000: "/usr/lib/libmlx5.so.1.25",
		0x7f0000002000: "",
		0x7f0000003000: "",
		0x7ffc00000010: "",
	} {
		if at := uintptr(address); uint64(at) == address { // skip 64-bit addresses on 32-bit machines
			assert.Equal(t, want, fileAt(strings.NewReader(maps), at), "%#x", address)
		}
	}
}

// TestProviders: functions are called without notifying the scheduler only if they run in user space, or in the kernel
// without sleeping. Every row has a reason.
func TestProviders(t *testing.T) {
	seen := map[string]bool{}
	for _, p := range Providers() {
		assert.False(t, seen[p.Name], p.Name)
		seen[p.Name] = true
		assert.NotEmpty(t, p.Reason)
		assert.Zero(t, p.Pure&p.Brief, p.Name)
		if p.Pure&PostSend == 0 && p.Name != "rxe" {
			assert.Zero(t, p.Pure|p.Brief, p.Name)
		}
	}
	for _, name := range []string{"siw", "hfi1verbs", "ipathverbs", "", "unknown", Software} {
		assert.Equal(t, runtime.Blocking, fastest(name, PostSend, nil), name)
	}
	assert.Equal(t, runtime.System, fastest("mlx5", PostSend, nil))
	assert.Equal(t, runtime.System, fastest("rxe", Poll, nil))
	assert.Equal(t, runtime.System, fastest("rxe", PostSend, nil), "Brief: enters the kernel without sleeping")
	assert.Equal(t, runtime.System, fastest("rxe", PostSend|Poll, nil))
	assert.Equal(t, runtime.Blocking, fastest("rxe", ReqNotify, nil))
	assert.Equal(t, runtime.Blocking, fastest("rxe", Poll|ReqNotify, nil))
	assert.Equal(t, runtime.System, fastest("mana", PostSend, nil))
	assert.Equal(t, runtime.Blocking, fastest("mana", Poll, nil))
	i := slices.IndexFunc(providers, func(p Provider) bool { return p.Name == "mlx5" })
	assert.Contains(t, providers[i].Reason, "printed only to the file of MLX5_DEBUG_FILE")
	added := []Provider{{Name: "mlx5"}, {Name: "added", Pure: Poll, Brief: PostRecv}}
	assert.Equal(t, runtime.Blocking, fastest("mlx5", PostSend, added), "additional rows take precedence")
	assert.Equal(t, runtime.System, fastest("added", Poll, added))
	assert.Equal(t, runtime.System, fastest("added", PostRecv, added))
	assert.Equal(t, runtime.Blocking, fastest("added", PostSend, added))
}

func TestParseWay(t *testing.T) {
	for _, w := range []runtime.Way{runtime.Blocking, runtime.System} {
		got, err := parseWay(w.String())
		assert.NoError(t, err)
		assert.Equal(t, w, got)
	}
	_, err := parseWay("fast")
	assert.EqualError(t, err, `unknown way to call C: "fast"; use one of blocking, system`)
	assert.Equal(t, "Way(9)", runtime.Way(9).String())
}
