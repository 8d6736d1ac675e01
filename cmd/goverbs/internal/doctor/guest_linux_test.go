// SPDX-License-Identifier: BSD-2-Clause

package doctor

import (
	"bytes"
	"context"
	"encoding/csv"
	"encoding/json"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// envExamine makes the test binary run the doctor, so that a test can run it as another user or in another network
// namespace.
const envExamine = "GOVERBS_TEST_DOCTOR"

func TestMain(m *testing.M) {
	if os.Getenv(envExamine) == "" {
		os.Exit(m.Run())
	}
	h, err := Here(context.Background(), 0)
	if err != nil {
		panic(err)
	}
	if err := json.NewEncoder(os.Stdout).Encode(Examine(h)); err != nil {
		panic(err)
	}
}

// nobody is the UID of an unprivileged user.
const nobody = 65534

// hide moves a file away and returns a function that restores it.
func hide(t *testing.T, pattern string) func() {
	names, err := filepath.Glob(pattern)
	require.NoError(t, err)
	require.NotEmpty(t, names, pattern)
	away := filepath.Join(filepath.Dir(filepath.Dir(names[0])), ".hidden")
	require.NoError(t, os.Rename(names[0], away))
	return func() { require.NoError(t, os.Rename(away, names[0])) }
}

// TestGuestDefects checks that the doctor reports the known defects of Debian 12's libraries. It finds the release in
// their file names.
func TestGuestDefects(t *testing.T) {
	if os.Getenv("GOVERBS_GUEST") != "6.1" {
		t.Skip("runs in a guest with the libraries of Debian 12")
	}
	const dir = "/usr/lib/x86_64-linux-gnu/"
	for library, name := range map[string]string{"libibverbs.so.1": "libibverbs.so.1.14.44.0",
		"librdmacm.so.1": "librdmacm.so.1.3.44.0"} { // in the guest, their file names lack the release
		require.NoError(t, os.Rename(dir+library, dir+name))
		require.NoError(t, os.Symlink(name, dir+library))
		defer func() { require.NoError(t, os.Rename(dir+name, dir+library)) }()
	}
	h, err := Here(t.Context(), 0)
	require.NoError(t, err)
	all := Examine(h).Findings
	require.Len(t, all, 1)
	assert.Equal(t, "libraries.defects", all[0].Cause)
	assert.Regexp(t, `: 44\.0, librdmacm: .*lost-devices.*node-guid.*; rxe: .*next-poll.*double-unlock`, all[0].What)
}

// TestGuest injects faults into a guest with Soft-RoCE and checks that each yields exactly one finding, which its fix
// or an equivalent clears.
func TestGuest(t *testing.T) {
	if os.Getenv("GOVERBS_GUEST") == "" {
		t.Skip("runs in a guest: go run ./conformance/vm/cmd/vmtest -- ./cmd/goverbs/internal/doctor")
	}
	netdev, device := os.Getenv("GOVERBS_NETDEV"), os.Getenv("GOVERBS_DEVICE")
	link, err := netlink.LinkByName(netdev)
	require.NoError(t, err)
	mtu := func(n int) func() {
		return func() { require.NoError(t, netlink.LinkSetMTU(link, n)) }
	}
	var addresses []netlink.Addr
	locals := func() {
		var err error
		addresses, err = netlink.AddrList(link, netlink.FAMILY_ALL)
		require.NoError(t, err)
		for _, a := range addresses {
			if !a.IP.IsLinkLocalUnicast() {
				require.NoError(t, netlink.AddrDel(link, &netlink.Addr{IPNet: a.IPNet}))
			}
		}
	}
	back := func() {
		for _, a := range addresses {
			if !a.IP.IsLinkLocalUnicast() {
				require.NoError(t, netlink.AddrAdd(link, &netlink.Addr{IPNet: &net.IPNet{IP: a.IP, Mask: a.Mask}}))
			}
		}
	}
	chmod := func(name string, mode os.FileMode) func() {
		return func() { require.NoError(t, os.Chmod(name, mode)) }
	}
	program := func(run func(cmd *exec.Cmd)) func() []Finding {
		return func() []Finding {
			self, err := os.Executable()
			require.NoError(t, err)
			cmd := exec.Command(self)
			cmd.Env = append(os.Environ(), envExamine+"=1")
			cmd.SysProcAttr = &syscall.SysProcAttr{}
			run(cmd)
			out, err := cmd.Output()
			require.NoError(t, err)
			var r Report
			require.NoError(t, json.Unmarshal(out, &r))
			return r.Findings
		}
	}
	other := program(func(cmd *exec.Cmd) { cmd.SysProcAttr.Credential = &syscall.Credential{Uid: nobody, Gid: nobody} })
	here := func() []Finding {
		h, err := Here(t.Context(), 0)
		require.NoError(t, err)
		return Examine(h).Findings
	}
	var limits unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_MEMLOCK, &limits))
	locked := func(most uint64) func() {
		return func() {
			require.NoError(t, unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: most, Max: limits.Max}))
		}
	}
	var restore func()
	hide := func(pattern string) func() { return func() { restore = hide(t, pattern) } }
	undo := func() { restore() }
	otherNamespace := program(func(cmd *exec.Cmd) { cmd.SysProcAttr.Cloneflags = syscall.CLONE_NEWNET })
	wrong := program(func(cmd *exec.Cmd) { cmd.Env = append(cmd.Env, "GOVERBS_DEVICE=mlx5_9") })
	nothing := func() {}
	const libs = "/usr/lib/x86_64-linux-gnu/"
	const uverbs, manager = "/dev/infiniband/uverbs0", "/dev/infiniband/rdma_cm"
	rows, right := [][]string{{"fault", "cause", "reported", "nothing else", "fixed"}}, 0
	for _, f := range []struct {
		fault, cause string
		inject, fix  func()
		look         func() []Finding
		stays        bool // the fault cannot be fixed while the test runs
	}{
		{"the interface is down", "link.down", func() { require.NoError(t, netlink.LinkSetDown(link)) },
			func() { require.NoError(t, netlink.LinkSetUp(link)) }, here, false},
		{"an MTU of 700", "mtu.small", mtu(700), mtu(1500), here, false},
		{"an MTU of 2100", "mtu.room", mtu(2100), mtu(1500), here, false},
		{"no addresses", "gids.local", locals, back, here, false},
		{"uverbs0 has no node", "nodes.missing", hide(uverbs), undo, here, false},
		{"rdma_cm has no node", "nodes.missing", hide(manager), undo, here, false},
		{"only root may open uverbs0", "nodes.permission", chmod(uverbs, 0o600), chmod(uverbs, 0o666), other, false},
		{"no permission for rdma_cm", "nodes.permission", chmod(manager, 0), chmod(manager, 0o666), other, false},
		{"memlock limit of 4096 bytes", "limits.memlock", locked(4096), locked(limits.Cur), other, false},
		{"librdmacm is missing", "libraries.cm", hide(libs + "librdmacm.so.1"), undo, here, false},
		{"libibverbs is missing", "libraries.verbs", hide(libs + "libibverbs.so.1"), undo, here, false},
		{"the provider library of rxe is missing", "libraries.provider", hide(libs + "libibverbs/librxe-*"), undo, here,
			false},
		{"rxe.driver is missing", "libraries.config", hide("/etc/libibverbs.d/rxe.driver"), undo, here, false},
		{"GOVERBS_DEVICE names no device", "env.device", nothing, nothing, wrong, true},
		{"another network namespace", "namespace.netdev", nothing, nothing, otherNamespace, true},
		{"rdma_ucm is unloaded", "modules.ucm",
			func() { require.NoError(t, unix.DeleteModule("rdma_ucm", 0)) }, nothing, here, true},
		{"the device is removed", "devices.none", func() { require.NoError(t, netlink.RdmaLinkDel(device)) },
			func() { require.NoError(t, netlink.RdmaLinkAdd(device, "rxe", netdev)) }, here, true},
	} {
		t.Run(f.cause, func(t *testing.T) {
			causesOf := func(all []Finding) (ids []string) {
				for _, one := range all {
					ids = append(ids, one.Cause)
				}
				return ids
			}
			if !strings.HasPrefix(f.cause, "devices") {
				assert.Eventually(t, func() bool { return len(here()) == 0 }, 10*time.Second, 100*time.Millisecond,
					"before: %v", here())
			}
			f.inject()
			want := []string{f.cause}
			found := assert.Eventually(t, func() bool { return assert.ObjectsAreEqual(want, causesOf(f.look())) },
				10*time.Second, 200*time.Millisecond, "%s: found %+v", f.cause, f.look())
			reported := slices.Contains(causesOf(f.look()), f.cause)
			f.fix()
			fixed := "not tested"
			if !f.stays {
				fixed = strconv.FormatBool(assert.Eventually(t, func() bool { return len(f.look()) == 0 },
					10*time.Second, 200*time.Millisecond, "%s after the fix: %+v", f.cause, f.look()))
			}
			rows = append(rows, []string{f.fault, f.cause, strconv.FormatBool(reported), strconv.FormatBool(found),
				fixed})
			if found {
				right++
			}
		})
	}
	t.Logf("reported without other findings: %d of %d", right, len(rows)-1)
	if out := os.Getenv("GOVERBS_OUT"); out != "" {
		var b bytes.Buffer
		require.NoError(t, csv.NewWriter(&b).WriteAll(rows))
		file := filepath.Join(out, "doctor-"+os.Getenv("GOVERBS_GUEST")+".csv")
		require.NoError(t, os.WriteFile(file, b.Bytes(), 0o644))
	}
}
