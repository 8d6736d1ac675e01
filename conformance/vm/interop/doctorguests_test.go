// SPDX-License-Identifier: BSD-2-Clause

package interop

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/conformance/vm/testbed"
	"github.com/goverbs/goverbs/conformance/vm/wire"
	"github.com/goverbs/goverbs/rdma"
)

// guest is one of two hosts, each with its own kernel and Soft-RoCE. A host changes the other one by sending it a
// command, a word with arguments.
type guest struct {
	root, netdev, device string
	own4, own6           netip.Addr
	peer4, peer6         netip.Addr
	serving              *exec.Cmd
	otherServer          net.Listener
}

// Commands are sent over IPv6, which the faults do not affect.
const commandPort = 8080

func newGuest(t *testing.T) *guest {
	testbed.Kernel(t)
	g := &guest{root: os.Getenv("GOVERBS_NFT"), netdev: os.Getenv(wire.EnvNetdev), device: os.Getenv(wire.EnvDevice)}
	if os.Getenv(wire.EnvPeer) == "" || g.root == "" {
		t.Skip("runs in two guests with nft: make vm WHAT=doctor")
	}
	g.own4, g.peer4 = netip.MustParseAddr(os.Getenv(wire.EnvAddress)), netip.MustParseAddr(os.Getenv(wire.EnvPeer))
	six := func(of netip.Addr) netip.Addr {
		return netip.MustParseAddr(fmt.Sprintf("fd77::%d", of.As4()[3])) // as in package guest
	}
	g.own6, g.peer6 = six(g.own4), six(g.peer4)
	return g
}

// TestDoctorGuests injects faults between two guests with separate kernels.
func TestDoctorGuests(t *testing.T) {
	g := newGuest(t)
	if os.Getenv(wire.EnvHost) == "1" {
		require.NoError(t, g.serveCommands(testbed.GuestTime(t, 20*time.Minute)))
		return
	}
	g.await(t)
	defer func() { assert.NoError(t, g.onPeer("end")) }()
	kernel := testbed.Kernel(t)
	tryFaults(t, "doctor-guests-"+kernel, g.faults(t), []string{g.peer4.String()},
		func(t *testing.T, args ...string) []finding { return doctor(t, g.device, args...) })
	t.Run("ping", g.endsBehindItsOwnFirewall)
}

// endsBehindItsOwnFirewall checks that goverbs ping times out behind a firewall that drops its packets, although Linux
// 6.1 does not close such a connection. Afterwards, Soft-RoCE of Linux 6.12 sends no more connection manager messages
// until the device is removed and added again.
func (g *guest) endsBehindItsOwnFirewall(t *testing.T) {
	f := g.filtered(t, false, "output", "drop")
	f.inject()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "goverbs", "ping", "-k", "cm", "-t", "2s", "-d", g.device, g.peer4.String())
	start := time.Now()
	out, err := cmd.CombinedOutput()
	elapsed := time.Since(start)
	t.Logf("%.1f s: %s", elapsed.Seconds(), out)
	var status *exec.ExitError
	require.ErrorAs(t, err, &status)
	assert.Equal(t, 1, status.ExitCode())
	assert.Contains(t, string(out), "cm failed: connect")
	assert.Less(t, elapsed, 15*time.Second)
	f.undo()
	works := func() bool {
		found := doctor(t, g.device, g.peer4.String())
		t.Logf("after removing the firewall: %+v", found)
		return len(found) == 0
	}
	if !works() && !works() {
		assert.NoError(t, netlink.RdmaLinkDel(g.device))
		assert.NoError(t, netlink.RdmaLinkAdd(g.device, "rxe", g.netdev))
		assert.Eventually(t, works, time.Minute, time.Second)
	}
}

// serveCommands executes commands of the other guest until it receives the command "end".
func (g *guest) serveCommands(ctx context.Context) error {
	end := make(chan error, 1)
	s := http.Server{Addr: netip.AddrPortFrom(g.own6, commandPort).String()}
	s.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var command []string
		err := json.NewDecoder(r.Body).Decode(&command)
		if err == nil && command[0] == "end" {
			end <- nil
			return
		}
		if err == nil {
			err = g.do(command...)
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
		}
	})
	go func() { end <- s.ListenAndServe() }()
	select {
	case err := <-end:
		time.Sleep(time.Second) // let the reply arrive
		return errors.Join(err, g.do("stop"))
	case <-ctx.Done():
		return errors.New("the other guest did not send the command end")
	}
}

// await waits until the other guest serves commands.
func (g *guest) await(t *testing.T) {
	t.Helper()
	for ctx := testbed.GuestTime(t, 2*time.Minute); ; time.Sleep(time.Second) {
		err := g.onPeer("serve")
		if err == nil {
			return
		}
		require.NoError(t, ctx.Err(), "%v", err)
	}
}

// onPeer sends a command to the other guest.
func (g *guest) onPeer(command ...string) error {
	b, err := json.Marshal(command)
	if err != nil {
		return err
	}
	client := http.Client{Timeout: 30 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	at := "http://" + netip.AddrPortFrom(g.peer6, commandPort).String()
	r, err := client.Post(at, "application/json", bytes.NewReader(b))
	if err != nil {
		return err
	}
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	if err == nil && r.StatusCode != http.StatusOK {
		err = errors.New(string(text))
	}
	if err != nil {
		return fmt.Errorf("%v on the peer: %w", command, err)
	}
	return nil
}

// do executes a command.
func (g *guest) do(command ...string) error {
	link, err := netlink.LinkByName(g.netdev)
	if err != nil {
		return err
	}
	switch name, args := command[0], command[1:]; name {
	case "serve":
		return errors.Join(g.do("stop"), g.serve(args...))
	case "stop":
		if g.serving != nil {
			_ = g.serving.Process.Kill()
			_ = g.serving.Wait()
		}
		if g.otherServer != nil {
			_ = g.otherServer.Close()
		}
		g.serving, g.otherServer = nil, nil
		return nil
	case "stranger":
		return errors.Join(g.do("stop"), g.listen())
	case "nft":
		return nft(g.root, args[0])
	case "mtu":
		n, err := strconv.Atoi(args[0])
		return errors.Join(err, netlink.LinkSetMTU(link, n))
	case "down": // only temporarily, since a command to set the link up would not arrive
		go func() {
			time.Sleep(3 * time.Second) // let the reply to this command arrive first
			_ = netlink.LinkSetDown(link)
			time.Sleep(30 * time.Second)
			_ = netlink.LinkSetUp(link)
			// the kernel drops IPv6 addresses of an interface that is down
			_ = netlink.AddrReplace(link, &netlink.Addr{Flags: unix.IFA_F_NODAD,
				IPNet: &net.IPNet{IP: g.own6.AsSlice(), Mask: net.CIDRMask(64, 128)}})
		}()
		return nil
	case "forget", "remember":
		a := &netlink.Addr{IPNet: &net.IPNet{IP: g.own4.AsSlice(), Mask: net.CIDRMask(24, 32)}}
		if name == "forget" {
			return netlink.AddrDel(link, a)
		}
		return netlink.AddrAdd(link, a)
	case "lose", "find": // changes the path to the other guest, which Soft-RoCE resolves without the routing table
		n := &netlink.Neigh{LinkIndex: link.Attrs().Index, State: netlink.NUD_PERMANENT, IP: g.peer4.AsSlice(),
			HardwareAddr: net.HardwareAddr{2, 0, 0, 0, 0, 99}}
		if name == "lose" {
			return netlink.NeighSet(n)
		}
		return netlink.NeighDel(n)
	}
	return fmt.Errorf("unknown command %q", command)
}

// serve starts goverbs serve with additional flags and waits until it listens.
func (g *guest) serve(flags ...string) error {
	g.serving = exec.Command("goverbs", append([]string{"serve", "-d", g.device}, flags...)...)
	g.serving.Stderr = os.Stderr
	g.serving.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := g.serving.Start(); err != nil {
		return err
	}
	for range 100 {
		if conn, err := net.Dial("tcp", "127.0.0.1:18517"); err == nil {
			return conn.Close()
		}
		time.Sleep(100 * time.Millisecond)
	}
	return errors.New("goverbs serve does not listen")
}

// listen starts another server on the port of goverbs serve.
func (g *guest) listen() (err error) {
	g.otherServer, err = net.Listen("tcp", ":18517")
	go func(l net.Listener) {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(c, "SSH-2.0-other\r\n")
			_ = c.Close()
		}
	}(g.otherServer)
	return err
}

// filtered returns the fault of a firewall. The fix inserts an accept rule before the rule that drops packets.
func (g *guest) filtered(t *testing.T, onPeer bool, hook, rule string) pairFault {
	do := g.do
	if onPeer {
		do = g.onPeer
	}
	replied := func(rules ...string) func() {
		return func() {
			for _, r := range rules {
				assert.NoError(t, do("nft", r))
			}
		}
	}
	f := pairFault{cause: "pair.firewall", fix: "allow UDP port 4791"}
	f.inject = replied("add table inet fire",
		"add chain inet fire wall { type filter hook "+hook+" priority 0; }",
		"add rule inet fire wall udp dport 4791 "+rule)
	f.repair = replied("insert rule inet fire wall udp dport 4791 accept")
	f.undo = replied("delete table inet fire")
	if f.name = hook + " here: " + rule; onPeer {
		f.name = hook + " there: " + rule
	}
	return f
}

// faults returns all faults.
func (g *guest) faults(t *testing.T) (all []pairFault) {
	nothing := func() {}
	command := func(words ...string) func() { return func() { assert.NoError(t, g.onPeer(words...)) } }
	do := func(words ...string) func() { return func() { assert.NoError(t, g.do(words...)) } }
	runBoth := func(all ...func()) func() {
		return func() {
			for _, f := range all {
				f()
			}
		}
	}
	index6 := strconv.Itoa(gidIndex(t, g.device, rdma.GIDQuery{Address: g.own6}))
	by6 := []string{g.peer6.String()}
	again := command("serve")
	for _, onPeer := range []bool{false, true} {
		for _, hook := range []string{"input", "output"} {
			all = append(all, g.filtered(t, onPeer, hook, "drop"))
		}
	}
	// A RoCE packet begins with its opcode: up to 31 for reliable connections, from 96 for datagrams. Queue pair 1
	// belongs to the connection manager.
	rc := g.filtered(t, true, "input", "@th,64,8 < 32 drop")
	rc.name, rc.cause, rc.fix = "packets of reliable connections are lost", "pair.rc", "UDP port 4791"
	ud := g.filtered(t, true, "input", "@th,64,8 >= 96 @th,104,24 > 1 drop")
	ud.name, ud.cause, ud.fix = "datagrams are lost", "pair.ud", "UDP port 4791"
	narrow := g.filtered(t, true, "input", "udp length > 900 drop")
	narrow.name, narrow.cause, narrow.fix = "large packets are lost", "pair.mtu", "use packets of 512"
	closed := g.filtered(t, true, "input", "drop")
	silent := closed.inject
	closed.inject = runBoth(silent, command("nft", "add rule inet fire wall ip daddr "+g.peer4.String()+
		" tcp dport 18517 reject with tcp reset"))
	closed.name, closed.cause, closed.fix = "IPv4 is closed, IPv6 is open", "pair.roce", "UDP port 4791"
	closed.args, closed.repairedArgs = by6, by6
	return append(all, rc, ud, narrow, closed,
		pairFault{"the MTUs differ", "pair.mtus", "mtu 4192, on " + g.peer4.String(), do("mtu", "4192"),
			runBoth(command("mtu", "4192"), again), runBoth(do("mtu", "1500"), command("mtu", "1500"), again), nil, nil},
		pairFault{"the GIDs are of different families", "pair.gid", "of one family with -x",
			command("serve", "-x", index6), again, nothing, nil, nil},
		pairFault{"the peer does not serve", "pair.tcp", "start goverbs serve on the peer", command("stop"), again,
			nothing, nil, nil},
		pairFault{"the peer has another program at the port", "pair.serve", "start goverbs serve",
			command("stranger"), again, nothing, nil, nil},
		pairFault{"the peer serves a GID that it does not have", "pair.answer",
			"run goverbs doctor on " + g.peer4.String(), command("serve", "-x", "200"), again, nothing, nil, nil},
		pairFault{"the peer has another port of the connection manager", "pair.cm", "--cm-port",
			command("serve", "--cm-port", "7175"), again, nothing, nil, nil},
		// the peer still has an IPv6 GID and chooses it
		pairFault{"the address of the peer's GID is gone", "pair.gid", "of one family with -x", command("forget"),
			nothing, runBoth(command("remember"), again), by6, append(by6, "-x", index6)},
		pairFault{"the neighbor entry of the peer's GID is wrong", "pair.address", "ip route get " + g.peer4.String(),
			do("lose"), do("find"), nothing, by6, nil},
		pairFault{"the peer's neighbor entry of this GID is wrong", "pair.address", "ip route get", command("lose"),
			command("find"), nothing, by6, nil},
		pairFault{"the peer's interface is down", "pair.tcp", "check the route", command("down"), func() {
			g.await(t)
		}, nothing, nil, nil},
	)
}
