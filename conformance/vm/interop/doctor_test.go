// SPDX-License-Identifier: BSD-2-Clause

package interop

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
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

	"github.com/goverbs/goverbs/conformance/vm/testbed"
	"github.com/goverbs/goverbs/conformance/vm/wire"
)

// hosts simulates two hosts: Soft-RoCE in the guest's namespace, where goverbs doctor runs, and a software device in
// another namespace, where goverbs serve runs.
type hosts struct {
	*testbed.Across
	root    string // root directory of nft
	serving *exec.Cmd
	inside  bool // goverbs doctor runs in the namespace of goverbs serve, which is the wrong one for its device
}

const (
	nearInterface = "across0" // network interface created by testbed.Across
	farInterface  = "across1"
)

// serve starts goverbs serve with additional flags on the other host and waits until it listens.
func (h *hosts) serve(t *testing.T, flags ...string) {
	require.NoError(t, h.Inside(func() error { return h.start(flags...) }))
	h.listens(t)
}

func (h *hosts) start(flags ...string) error {
	h.serving = exec.Command("goverbs", append([]string{"serve", "-d", "soft@" + h.Soft4.String()}, flags...)...)
	h.serving.Stderr = os.Stderr
	h.serving.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return h.serving.Start()
}

func (h *hosts) listens(t *testing.T) {
	require.Eventually(t, func() bool {
		return h.Inside(func() error {
			conn, err := net.DialTimeout("tcp", netip.AddrPortFrom(h.Soft4, 18517).String(), time.Second)
			if err != nil {
				return err
			}
			return conn.Close()
		}) == nil
	}, 30*time.Second, 100*time.Millisecond, "goverbs serve does not listen")
}

func (h *hosts) stop() {
	if h.serving != nil {
		_ = h.serving.Process.Kill()
		_ = h.serving.Wait()
		h.serving = nil
	}
}

// finding is a finding of goverbs doctor.
type finding struct{ Cause, What, Fix string }

// doctor runs goverbs doctor against the other host and returns its findings.
func (h *hosts) doctor(t *testing.T, args ...string) (all []finding) {
	if !h.inside {
		return doctor(t, h.Device, args...)
	}
	require.NoError(t, h.Inside(func() error {
		all = doctor(t, h.Device, args...)
		return nil
	}))
	return all
}

// doctor runs goverbs doctor and returns its findings.
func doctor(t *testing.T, device string, args ...string) []finding {
	flags := []string{"--json", "doctor", "-i", "0s", "-t", "3s", "-d", device}
	cmd := exec.Command("goverbs", append(flags, args...)...)
	var wrong bytes.Buffer
	cmd.Stderr = &wrong
	out, _ := cmd.Output() // the exit status is 1 if there are problems
	var report struct{ Findings []finding }
	require.NoError(t, json.Unmarshal(out, &report), "%s%s", out, &wrong)
	return report.Findings
}

// causesOf returns the sorted, distinct causes of findings.
func causesOf(all []finding) (causes []string) {
	for _, f := range all {
		causes = append(causes, f.Cause)
	}
	slices.Sort(causes)
	return slices.Compact(causes)
}

// nft runs an nft command on this or the other host.
func (h *hosts) nft(t *testing.T, onPeer bool, rule string) {
	run := func() error {
		assert.NoError(t, nft(h.root, rule))
		return nil
	}
	if !onPeer {
		_ = run()
		return
	}
	require.NoError(t, h.Inside(run))
}

// nft runs Debian's nft from a root directory.
func nft(root, rule string) error {
	cmd := exec.Command("/usr/bin/nft", rule)
	cmd.SysProcAttr, cmd.Dir = &syscall.SysProcAttr{Chroot: root}, "/"
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("nft %s: %w: %s", rule, err, out)
	}
	return nil
}

// face applies a change to a network interface of either host.
func (h *hosts) face(t *testing.T, name string, change func(l netlink.Link) error) {
	do := func() error {
		l, err := netlink.LinkByName(name)
		if err != nil {
			return err
		}
		return change(l)
	}
	if name == nearInterface {
		require.NoError(t, do())
		return
	}
	require.NoError(t, h.Inside(do))
}

// address adds an address to an interface, or removes it.
func (h *hosts) address(t *testing.T, face string, a netip.Addr, do func(netlink.Link, *netlink.Addr) error) {
	h.face(t, face, func(l netlink.Link) error {
		return do(l, &netlink.Addr{IPNet: &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(24, 32)}})
	})
}

// pairFault is a fault between two hosts. repair applies the fix of the finding, and undo restores the initial state.
type pairFault struct {
	name, cause          string
	fix                  string // part of the expected fix
	inject, repair, undo func()
	args, repairedArgs   []string // arguments of goverbs doctor with the fault, and after the fix
}

// filtered returns the fault of a firewall on one of the hosts. The fix accepts packets to the RoCE port.
func (h *hosts) filtered(t *testing.T, onPeer bool, hook, rule string) (f pairFault) {
	f.inject = func() {
		h.nft(t, onPeer, "add table inet fire")
		h.nft(t, onPeer, "add chain inet fire wall { type filter hook "+hook+" priority 0; }")
		h.nft(t, onPeer, "add rule inet fire wall udp dport 4791 "+rule)
	}
	f.repair = func() { h.nft(t, onPeer, "insert rule inet fire wall udp dport 4791 accept") }
	f.undo = func() { h.nft(t, onPeer, "delete table inet fire") }
	f.name, f.cause, f.fix = hook+" here: "+rule, "pair.firewall", "allow UDP port 4791"
	if onPeer {
		f.name = hook + " there: " + rule
	}
	return f
}

// pairFaults returns all faults.
func (h *hosts) pairFaults(t *testing.T) (all []pairFault) {
	nothing := func() {}
	again := func() { h.stop(); h.serve(t) }
	for _, onPeer := range []bool{false, true} {
		for _, hook := range []string{"input", "output"} {
			all = append(all, h.filtered(t, onPeer, hook, "drop"))
		}
	}
	all = append(all, h.filtered(t, true, "input", "reject"),
		h.filtered(t, true, "input", "reject with icmpx admin-prohibited"))
	narrow := h.filtered(t, true, "input", "udp length > 900 drop") // like a switch with a small MTU
	narrow.name, narrow.cause, narrow.fix = "large packets are lost", "pair.mtu", "use packets of 512"
	mtu := func(face string, n int) {
		h.face(t, face, func(l netlink.Link) error { return netlink.LinkSetMTU(l, n) })
	}
	peer4, peer6 := []string{h.Soft4.String()}, []string{h.Soft6.String()}
	return append(all, narrow,
		pairFault{"the MTUs differ", "pair.mtus", "mtu 4192, on " +
			"" + h.Soft4.String(), func() { mtu(nearInterface, 4192) },
			func() { mtu(farInterface, 4192); again() },
			func() { mtu(nearInterface, 1500); mtu(farInterface, 1500); again() }, nil, nil},
		pairFault{"the peer does not serve", "pair.tcp", "start goverbs serve on the peer", h.stop, again, nothing, nil,
			nil},
		pairFault{"the peer serves in another namespace", "pair.tcp", "start goverbs serve on the peer", func() {
			h.stop()
			h.serving = exec.Command("goverbs", "serve", "-d", h.Device)
			require.NoError(t, h.serving.Start())
		}, again, nothing, nil, nil},
		pairFault{"the peer has another port of the connection manager", "pair.cm", "--cm-port",
			func() { h.stop(); h.serve(t, "--cm-port", "7175") }, again, nothing, nil, nil},
		pairFault{"the address of the peer's GID is gone", "pair.address", h.Soft4.String(),
			func() { h.address(t, farInterface, h.Soft4, netlink.AddrDel) },
			func() { h.address(t, farInterface, h.Soft4, netlink.AddrAdd) }, again, peer6, peer4},
		pairFault{"this host's address is gone", "pair.tcp", "check the route",
			func() { h.address(t, nearInterface, h.Kernel4, netlink.AddrDel) },
			func() { h.address(t, nearInterface, h.Kernel4, netlink.AddrAdd) }, nothing, nil, nil},
		pairFault{"this program is not in the device's namespace", "namespace.netdev",
			"run in the namespace of " + nearInterface,
			func() { h.inside = true }, func() { h.inside = false }, nothing, nil, nil},
	)
}

// TestDoctor injects faults between two hosts. goverbs doctor must report exactly the injected fault, and its fix must
// work.
func TestDoctor(t *testing.T) {
	kernel := testbed.Kernel(t)
	root := os.Getenv("GOVERBS_NFT")
	if root == "" {
		t.Skip("nft is not in this guest: run make vm WHAT=doctor")
	}
	h := &hosts{Across: testbed.OpenAcross(t), root: root}
	h.serve(t)
	defer h.stop()
	tryFaults(t, "doctor-pair-"+kernel, h.pairFaults(t), []string{h.Soft4.String()}, h.doctor)
}

// tryFaults injects faults, applies the fixes, and writes a table of the findings of goverbs doctor.
func tryFaults(t *testing.T, table string, faults []pairFault, usual []string,
	doctor func(t *testing.T, args ...string) []finding) {
	rows := [][]string{{"fault", "cause", "reported", "nothing else", "fixed"}}
	for _, f := range faults {
		if f.args == nil {
			f.args = usual
		}
		if f.repairedArgs == nil {
			f.repairedArgs = f.args
		}
		t.Run(strings.ReplaceAll(f.name, " ", "_"), func(t *testing.T) {
			f.inject()
			var all []finding
			found := assert.Eventually(t, func() bool {
				all = doctor(t, f.args...)
				return slices.Equal(causesOf(all), []string{f.cause})
			}, time.Minute, 500*time.Millisecond)
			t.Logf("%+v", all)
			named := slices.IndexFunc(all, func(one finding) bool { return one.Cause == f.cause })
			assert.True(t, slices.ContainsFunc(all, func(one finding) bool {
				return one.Cause == f.cause && strings.Contains(one.Fix, f.fix)
			}), "no fix contains %q", f.fix)
			f.repair()
			var left []finding
			repairedArgs := assert.Eventually(t, func() bool {
				left = doctor(t, f.repairedArgs...)
				return len(left) == 0
			}, time.Minute, 500*time.Millisecond)
			if !repairedArgs {
				t.Logf("left: %+v", left)
			}
			f.undo()
			rows = append(rows, []string{f.name, f.cause, strconv.FormatBool(named >= 0), strconv.FormatBool(found),
				strconv.FormatBool(repairedArgs)})
		})
	}
	named := 0
	for _, row := range rows[1:] {
		if row[2] == "true" && row[3] == "true" {
			named++
		}
	}
	t.Logf("reported without other findings: %d of %d", named, len(rows)-1)
	if out := os.Getenv(wire.EnvOut); out != "" {
		var b bytes.Buffer
		require.NoError(t, csv.NewWriter(&b).WriteAll(rows))
		require.NoError(t, os.WriteFile(filepath.Join(out, table+".csv"), b.Bytes(), 0o644))
	}
}
