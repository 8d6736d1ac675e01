// SPDX-License-Identifier: BSD-2-Clause

package interop

import (
	"bytes"
	"math/rand"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/conformance/vm/testbed"
)

// TestCopy copies a file with goverbs cp from a software device to Soft-RoCE and back.
func TestCopy(t *testing.T) {
	if _, err := exec.LookPath("goverbs"); err != nil {
		t.Skip("goverbs is not in this guest: make vm WHAT=doctor")
	}
	a := testbed.OpenAcross(t)
	here := func(f func() error) error { return f() }
	for _, test := range []struct {
		name         string
		to, from     func(func() error) error
		at           netip.Addr
		listens, own []string
	}{
		{"to Soft-RoCE", here, a.Inside, a.Kernel4, nil, []string{"-d", "soft@" + a.Soft4.String()}},
		{"from Soft-RoCE", a.Inside, here, a.Soft4, []string{"-d", "soft@" + a.Soft4.String()}, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			for _, size := range []int{0, 1, 20<<20 + 3} {
				dir := t.TempDir()
				file, to := filepath.Join(dir, "file"), filepath.Join(dir, "to")
				want := make([]byte, size)
				rand.New(rand.NewSource(int64(size))).Read(want)
				require.NoError(t, os.WriteFile(file, want, 0o600))
				var output bytes.Buffer
				receiver := exec.Command("goverbs", append([]string{"cp", "--listen", test.at.String(), to},
					test.listens...)...)
				receiver.Stdout, receiver.Stderr = &output, &output
				receiver.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
				require.NoError(t, test.to(receiver.Start))
				received := make(chan error, 1)
				go func() { received <- receiver.Wait() }()
				var out []byte
				var err error
				for range 20 { // retry until the receiver listens
					var run *exec.Cmd
					require.NoError(t, test.from(func() error {
						run = exec.CommandContext(t.Context(), "goverbs", append([]string{"cp", file, test.at.String()},
							test.own...)...)
						out, err = run.CombinedOutput()
						return nil
					}))
					if err == nil {
						break
					}
					time.Sleep(500 * time.Millisecond)
				}
				if !assert.NoError(t, err, "%s", out) {
					_ = receiver.Process.Kill()
				}
				assert.NoError(t, <-received, "%s", &output)
				have, err := os.ReadFile(to)
				require.NoError(t, err)
				assert.True(t, bytes.Equal(want, have), "%d bytes", size)
			}
		})
	}
}
