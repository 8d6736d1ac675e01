// SPDX-License-Identifier: BSD-2-Clause

package rpma

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/rpma"
)

// Roles in which memory runs out, in the libraries below librpma or in librpma itself.
const (
	memory = "memory"
	own    = "own"
)

const (
	envFaults = "GOVERBS_FAULTS"
	faultsLib = "/usr/lib/faults.so" // built from faults.c
)

// TestOutOfMemory checks that package rpma returns librpma's codes, call by call, if any allocation of libibverbs, its
// provider or librdmacm fails. librpma has a separate code for failures of its own allocations, which do not exist in
// Go.
func TestOutOfMemory(t *testing.T) {
	inC(t)
	if _, err := os.Stat(faultsLib); err != nil {
		t.Skip("the library of faults.c is not in the guest: run make vm")
	}
	c, inGo := runOut(t, inCAlone, memory), runOut(t, inGo, memory)
	assert.Equal(t, c, inGo)
	assert.Contains(t, c, "peer: -100003\n")
	assert.Contains(t, c, "request: -100002\n")
	for line := range strings.Lines(runOut(t, inCAlone, own)) {
		assert.Regexp(t, `: -100003\n`, line)
	}
}

func runOut(t *testing.T, language, role string) string {
	t.Helper()
	faults := filepath.Join(t.TempDir(), "faults")
	require.NoError(t, os.WriteFile(faults, make([]byte, os.Getpagesize()), 0o600))
	w := newWatcher(timeout(t), t, language, role, address(7670))
	w.cmd.Env = append(w.cmd.Env, envFaults+"="+faults, "LD_PRELOAD="+faultsLib)
	out, err := w.cmd.Output()
	require.NoError(t, err, "%s: %s", w.desc, out)
	return string(out)
}

// withoutMemory prints the codes of calls for which an allocation of one of the libraries fails.
func withoutMemory(at, host string) error {
	file, err := os.OpenFile(os.Getenv(envFaults), os.O_RDWR, 0)
	if err != nil {
		return err
	}
	page, err := unix.Mmap(int(file.Fd()), 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return err
	}
	ctx := context.Background()
	d, err := rpma.FindDevice(ctx, rpma.Local, host)
	if err != nil {
		return err
	}
	peer, err := rpma.NewPeer(d, rpma.PeerOptions{})
	if err != nil {
		return err
	}
	memory := make([]byte, size)
	for _, call := range []struct {
		name string
		call func() (interface{ Close() error }, error)
	}{
		{"peer", func() (interface{ Close() error }, error) { return rpma.NewPeer(d, rpma.PeerOptions{}) }},
		{"region", func() (interface{ Close() error }, error) { return peer.RegMR(memory, localUsage) }},
		{"endpoint", func() (interface{ Close() error }, error) { return peer.Listen(ctx, at) }},
		{"request", func() (interface{ Close() error }, error) { return peer.NewConnRequest(ctx, at, nil) }},
		{"shared receive queue", func() (interface{ Close() error }, error) { return peer.NewSRQ(rpma.SRQConfig{}) }},
	} {
		var seen []rpma.Code
		left := byte(0)
		for n := byte(1); left == 0; n++ {
			page[0] = n
			object, err := call.call()
			if err == nil {
				err = object.Close()
			} else {
				seen = append(seen, rpma.CodeOf(err))
			}
			left, page[0] = page[0], 0
			if left != 0 && err != nil {
				return err
			}
		}
		slices.Sort(seen)
		fmt.Printf("%s:", call.name)
		for _, code := range slices.Backward(slices.Compact(seen)) {
			fmt.Printf(" %d", code)
		}
		fmt.Println()
	}
	return nil
}
