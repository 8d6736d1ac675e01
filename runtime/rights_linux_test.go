// SPDX-License-Identifier: BSD-2-Clause

//go:build amd64 || arm64 || loong64 || ppc64le || riscv64

package runtime_test

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/internal/rights"
	"github.com/goverbs/goverbs/runtime"
)

// TestMoreRightsThanTheUser runs this test program set-uid and checks that it does not open a library that the user's
// environment names, which would run with the rights of the program's owner.
func TestMoreRightsThanTheUser(t *testing.T) {
	if os.Getenv("GOVERBS_TEST_RIGHTS") != "" {
		openWithMoreRights(t)
		return
	}
	if os.Getuid() != 0 {
		t.Skip("only root can create a program that runs as another user")
	}
	const nobody = 65534
	dir, err := os.MkdirTemp("", "goverbs")
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	require.NoError(t, os.Chmod(dir, 0o755))
	var stat unix.Statfs_t
	require.NoError(t, unix.Statfs(dir, &stat))
	if stat.Flags&unix.ST_NOSUID != 0 {
		t.Skipf("%s is on a file system without set-uid programs", dir)
	}
	executable, err := os.Executable()
	require.NoError(t, err)
	copyFile := func(name, from string) string {
		content, err := os.ReadFile(from)
		require.NoError(t, err)
		to := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(to, content, 0o755))
		return to
	}
	program, library := copyFile("program", executable), copyFile("calls.so", pathOf("calls.so"))
	require.NoError(t, os.Chown(program, nobody, -1))
	for mode, rights := range map[fs.FileMode]string{0o755: "the user's", 0o755 | fs.ModeSetuid: "its owner's"} {
		require.NoError(t, os.Chmod(program, mode))
		cmd := exec.Command(program, "-test.run=^TestMoreRightsThanTheUser$", "-test.v")
		cmd.Env = append(os.Environ(), "GOVERBS_TEST_RIGHTS="+rights, "GOVERBS_TEST_LIBRARIES="+dir,
			"GOVERBS_SOMEWHERE="+library, "RDMAV_DRIVERS=/nowhere/driver", "VERBS_LOG_FILE=/nowhere/log")
		cmd.Dir = dir
		out, err := cmd.CombinedOutput()
		if errors.Is(err, syscall.EPERM) {
			t.Skip("set-uid programs are not executed here")
		}
		assert.NoError(t, err, "%s rights: %s", rights, out)
		assert.Contains(t, string(out), "opened with "+rights+" rights", "the test was not run")
	}
}

// openWithMoreRights runs in the set-uid program.
func openWithMoreRights(t *testing.T) {
	owner := os.Getenv("GOVERBS_TEST_RIGHTS")
	more := owner == "its owner's"
	require.Equal(t, more, os.Getuid() != os.Geteuid())
	l := &runtime.Library{Name: "somewhere", SOName: "libsomewhere.so.1"}
	err := l.Open()
	if more {
		require.ErrorContains(t, err, "libsomewhere.so.1 cannot be opened")
		require.ErrorContains(t, err, "with more rights than its user, so GOVERBS_SOMEWHERE is ignored")
		require.NoError(t, l.SetPath(os.Getenv("GOVERBS_SOMEWHERE")), "a path from the program itself is used")
		require.NoError(t, l.Open())
	} else {
		require.NoError(t, err)
	}
	libc := &runtime.Library{Name: "libc", SOName: "libc.so.6"}
	getenv := &runtime.Function{Library: libc, Name: "getenv"}
	assert.Equal(t, more, rights.Getenv("GOVERBS_TEST_RIGHTS") == "", "other variables that choose what runs")
	for _, name := range []string{"RDMAV_DRIVERS", "VERBS_LOG_FILE"} {
		c := append([]byte(name), 0)
		value, err := getenv.Exported().Value(uintptr(unsafe.Pointer(&c[0])))
		require.NoError(t, err)
		assert.Equal(t, more, value == 0, "the value of %s for rdma-core", name)
	}
	t.Logf("opened with %s rights", owner)
}
