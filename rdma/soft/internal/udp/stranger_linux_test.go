// SPDX-License-Identifier: BSD-2-Clause

package udp

import (
	"bufio"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

const asStranger = "GOVERBS_UDP_STRANGER" // for a process of another user: an action, a blank and a name

// actAsOtherUser binds a name, or connects to it until its backlog is full.
func actAsOtherUser(how string) {
	var name string
	fmt.Sscan(how, &how, &name)
	at := &unix.SockaddrUnix{Name: name}
	for range 5000 {
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK, 0)
		if err != nil {
			break
		}
		if how == "fill" {
			if unix.Connect(fd, at) != nil {
				break
			}
			continue
		}
		if err = unix.Bind(fd, at); err == nil && how == "listen" {
			err = unix.Listen(fd, 1)
		}
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		break
	}
	fmt.Println("ready")
	io.Copy(io.Discard, os.Stdin)
	os.Exit(0)
}

// startOtherUser starts a process of another user. It runs until the returned function is called or the test ends.
func startOtherUser(t *testing.T, how, name string) (end func()) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root to start a process of another user")
	}
	program, err := os.Open("/proc/self/exe")
	require.NoError(t, err)
	defer program.Close()
	p := exec.Command("/proc/self/fd/3")
	p.ExtraFiles, p.Dir, p.Env = []*os.File{program}, "/", []string{fmt.Sprintf("%s=%s %s", asStranger, how, name)}
	p.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	out, err := p.StdoutPipe()
	require.NoError(t, err)
	in, err := p.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, p.Start())
	end = func() { in.Close(); _ = p.Process.Kill(); _ = p.Wait() }
	t.Cleanup(end)
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "ready\n", line)
	return end
}

// soonEnough is less than joinLimit.
const soonEnough = joinLimit / 3

// TestLockOfOtherUser: an address whose names belong to another user is in use, and the error is returned promptly.
func TestLockOfOtherUser(t *testing.T) {
	for _, name := range []string{"lock", "0", "7"} {
		for _, how := range []string{"listen", "bind"} {
			port := free(t, v4)
			end := startOtherUser(t, how, fmt.Sprintf("@goverbs-udp/%v/%s", netip.AddrPortFrom(v4, uint16(port)), name))
			begin := time.Now()
			s, err := Open(v4, Options{Port: port, Share: true})
			assert.Less(t, time.Since(begin), soonEnough, "%s %s", how, name)
			if how == "bind" && name == "7" { // not yet checked
				require.NoError(t, err)
				require.NoError(t, s.Close())
			} else {
				assert.ErrorIs(t, err, syscall.EADDRINUSE, "%s %s", how, name)
			}
			end()
			shared(t, v4, port)
		}
	}
}

// TestLeadOfOtherUser: processes can share an address even if another user has the lead's name.
func TestLeadOfOtherUser(t *testing.T) {
	for _, how := range []string{"listen", "bind"} {
		port, from := free(t, v4), opened(t, v4, Options{})
		end := startOtherUser(t, how, fmt.Sprintf("@goverbs-udp/%v/lead", netip.AddrPortFrom(v4, uint16(port))))
		begin := time.Now()
		first := shared(t, v4, port)
		second, third := shared(t, v4, port), shared(t, v4, port)
		assert.Less(t, time.Since(begin), soonEnough)
		for _, packet := range forLead {
			delivered(t, from, first, packet)
		}
		require.NoError(t, first.Close())
		leadsTo := func(m *Socket) {
			t.Helper()
			require.Eventually(t, func() bool { // another member takes over
				_, err := from.Write(m.Addr(), forLead[0], len(forLead[0]))
				require.NoError(t, err)
				return ready(m.out.fd, unix.POLLIN, 10*time.Millisecond)
			}, limit, time.Millisecond)
			b := make([]byte, MaxRead)
			for ready(m.out.fd, unix.POLLIN, 10*time.Millisecond) {
				require.NoError(t, m.Read(b, &Arrival{}))
			}
		}
		leadsTo(second)
		end()
		lead := leadOf(t, []*Socket{second, third})
		leadsTo(lead)
		for _, packet := range forLead {
			delivered(t, from, lead, packet)
		}
	}
}

// TestFullBacklogOfLead: another user's connections to the lead do not prevent processes from joining.
func TestFullBacklogOfLead(t *testing.T) {
	port, from := free(t, v4), opened(t, v4, Options{})
	first, second := shared(t, v4, port), shared(t, v4, port)
	startOtherUser(t, "fill", first.group.prefix+"lead")
	begin := time.Now()
	members := []*Socket{second, shared(t, v4, port)}
	assert.Less(t, time.Since(begin), soonEnough)
	require.NoError(t, first.Close())
	lead := leadOf(t, members)
	for _, packet := range forLead {
		delivered(t, from, lead, packet)
	}
}

// TestServiceOfOtherUser: claims of services do not depend on names or backlogs that another user could take.
func TestServiceOfOtherUser(t *testing.T) {
	port := free(t, v4)
	first, second := shared(t, v4, port), shared(t, v4, port)
	claim, err := second.Claim(7)
	require.NoError(t, err)
	defer claim.Close()
	all, err := os.ReadFile("/proc/net/unix")
	require.NoError(t, err)
	for line := range strings.Lines(string(all)) {
		if _, name, ok := strings.Cut(strings.TrimSpace(line), first.group.prefix); ok {
			assert.Contains(t, []string{"lead", "0", "1"}, name)
			startOtherUser(t, "fill", first.group.prefix+name)
		}
	}
	member, ok := first.Claimed(7)
	assert.True(t, ok)
	assert.Equal(t, 1, member)
	_, err = first.Claim(7)
	assert.ErrorIs(t, err, syscall.EADDRINUSE)
	claim, err = first.Claim(8)
	require.NoError(t, err)
	defer claim.Close()
}
