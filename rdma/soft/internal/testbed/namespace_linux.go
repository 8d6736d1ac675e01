// SPDX-License-Identifier: BSD-2-Clause

package testbed

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
)

const within = "GOVERBS_TEST_NAMESPACE"

// InNamespace runs the calling test in a child process with new user and network namespaces, in parallel with other
// tests. It returns true in the child. The test is skipped if the system does not allow such namespaces.
func InNamespace(t *testing.T) bool {
	t.Helper()
	if Namespaced() {
		return true
	}
	t.Parallel()
	c := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v", "-test.timeout=5m")
	c.Env = append(os.Environ(), within+"=1")
	c.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNET,
		UidMappings: []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}},
		Pdeathsig:   syscall.SIGKILL,
	}
	out, err := c.CombinedOutput()
	switch said := string(out); {
	case errors.Is(err, syscall.EPERM), errors.Is(err, syscall.EINVAL), errors.Is(err, syscall.ENOSPC):
		t.Skip("user and network namespaces are not permitted:", err)
	case strings.Contains(said, "--- SKIP"):
		t.Skip("in the namespace:", said)
	case err != nil, !strings.Contains(said, "--- PASS: "+t.Name()):
		t.Fatalf("in the namespace: %v\n%s", err, said)
	default:
		t.Log("in the namespace:", said)
	}
	return false
}

// Namespaced reports whether this process was started by InNamespace.
func Namespaced() bool { return os.Getenv(within) != "" }
