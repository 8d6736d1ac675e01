// SPDX-License-Identifier: BSD-2-Clause

package udp

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// free returns a port that is currently free.
func free(t testing.TB, addr netip.Addr) int {
	s, err := Open(addr, Options{Port: AnyPort})
	require.NoError(t, err)
	defer s.Close()
	return int(s.Addr().Port())
}

func shared(t testing.TB, addr netip.Addr, port int) *Socket {
	t.Helper()
	s, err := Open(addr, Options{Port: port, Share: true})
	require.NoError(t, err)
	t.Cleanup(func() { s.Close() })
	return s
}

// forQP returns a packet for a queue pair, with a text.
func forQP(qpn uint32, text string) []byte {
	b := make([]byte, 12, 64)
	binary.BigEndian.PutUint32(b[4:], qpn)
	return append(b, text...)
}

// forCM returns a message of the connection manager.
func forCM(class byte, attribute uint16, local, remote uint32) []byte {
	b := forQP(1, strings.Repeat("\xff", 256))
	b[21] = class
	binary.BigEndian.PutUint16(b[36:], attribute)
	binary.BigEndian.PutUint32(b[44:], local)
	binary.BigEndian.PutUint32(b[48:], remote)
	return b
}

// forLead lists messages without the receiver's communication ID: REQ, SIDR_REQ, and a REJ after a timeout. The last is
// not a message of the connection manager.
var forLead = [][]byte{forCM(7, 0x10, 1<<26, 2<<26), forCM(7, 0x17, 1<<26, 2<<26), forCM(7, 0x12, 1<<26, 0),
	forCM(4, 0x15, 1<<26, 2<<26)}

// leadOf waits for a lead among the members and returns it.
func leadOf(t *testing.T, members []*Socket) (lead *Socket) {
	t.Helper()
	require.Eventually(t, func() bool {
		for _, m := range members {
			m.writing.Lock()
			if m.group.lead != nil && !m.closed {
				lead = m
			}
			m.writing.Unlock()
		}
		return lead != nil
	}, limit, time.Millisecond)
	return lead
}

// delivered sends a packet to all members, and checks that only this one gets it. If another member gets it, that
// member's next call fails.
func delivered(t *testing.T, from, to *Socket, packet []byte) {
	t.Helper()
	_, err := from.Write(to.Addr(), packet, len(packet))
	require.NoError(t, err)
	got, _ := receive(t, to, from.Addr(), len(packet))
	require.Equal(t, packet, got)
}

func TestMembersGetTheirPackets(t *testing.T) {
	for _, addr := range []netip.Addr{v4, v6} {
		port := free(t, addr)
		from := opened(t, addr, Options{})
		var members []*Socket
		check := func() {
			for _, m := range members {
				for range 3 {
					delivered(t, from, m, forQP(uint32(m.Member())<<18|0x2abcd, fmt.Sprint("to ", m.Member())))
					id := uint32(m.Member())<<26 | 0x123
					for _, attribute := range []uint16{0x11, 0x12, 0x13, 0x14, 0x15, 0x16} {
						delivered(t, from, m, forCM(7, attribute, 5<<26, id))
					}
					delivered(t, from, m, forCM(7, 0x18, id, 5<<26))
				}
			}
			for _, packet := range forLead {
				delivered(t, from, leadOf(t, members), packet)
			}
			for _, packet := range [][]byte{forQP(1, "short"), forQP(0, "")[:7], {0}} {
				if members[0].Member() == 0 {
					delivered(t, from, members[0], packet)
				}
			}
		}
		for i := range 4 {
			members = append(members, shared(t, addr, port))
			assert.Equal(t, i, members[i].Member())
			check()
		}
		// A member in the middle leaves: the others keep their numbers. The next to join gets its number.
		for _, left := range []int{1, 0, 3} {
			require.NoError(t, members[left].Close())
			others := members
			members = append(append([]*Socket(nil), others[:left]...), others[left+1:]...)
			check()
			if left < 3 { // the next member does not see packets from before
				_, err := from.Write(others[left].Addr(), forQP(uint32(left)<<18, "to a member that has left"), 64)
				require.NoError(t, err)
			}
			members = others
			members[left] = shared(t, addr, port)
			assert.Equal(t, left, members[left].Member())
			check()
		}
		_, err := Open(addr, Options{Port: port})
		assert.ErrorIs(t, err, syscall.EADDRINUSE, "the address is shared")
		for _, m := range members {
			require.NoError(t, m.Close())
		}
		alone, err := Open(addr, Options{Port: port})
		require.NoError(t, err, "the group no longer exists")
		_, err = Open(addr, Options{Port: port, Share: true})
		assert.ErrorIs(t, err, syscall.EADDRINUSE)
		require.NoError(t, alone.Close())
	}
}

func TestManyJoinAtOnce(t *testing.T) {
	port, from := free(t, v4), opened(t, v4, Options{})
	var (
		members [12]*Socket
		wait    sync.WaitGroup
	)
	for i := range members {
		wait.Go(func() { members[i], _ = Open(v4, Options{Port: port, Share: true}) })
	}
	wait.Wait()
	seen := map[int]bool{}
	for _, m := range members {
		require.NotNil(t, m)
		defer m.Close()
		require.False(t, seen[m.Member()], "two members have the number %d", m.Member())
		seen[m.Member()] = true
		require.Less(t, m.Member(), len(members))
		delivered(t, from, m, forQP(uint32(m.Member())<<18, "hello"))
	}
}

func TestTooManyMembers(t *testing.T) {
	var limit syscall.Rlimit
	if syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit) != nil || limit.Cur < 4000 {
		t.Skipf("too few descriptors: the limit is %d", limit.Cur)
	}
	port := free(t, v4)
	for range MaxMembers {
		shared(t, v4, port)
	}
	_, err := Open(v4, Options{Port: port, Share: true})
	assert.ErrorContains(t, err, "63 processes share it")
	assert.ErrorIs(t, err, syscall.EADDRINUSE)
}

const asMember = "GOVERBS_UDP_MEMBER"

// TestMain can act as another process of a group: it prints its number, and then the text of each packet.
func TestMain(m *testing.M) {
	if os.Getenv(asEcho) != "" {
		echo()
	}
	if how := os.Getenv(asStranger); how != "" {
		actAsOtherUser(how)
	}
	if os.Getenv(asMember) == "" {
		os.Exit(m.Run())
	}
	port, _ := strconv.Atoi(os.Getenv(asMember))
	s, err := Open(v4, Options{Port: port, Share: true})
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println(s.Member())
	go func() {
		io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	for b, a := make([]byte, MaxRead), (Arrival{}); ; {
		if err := s.Read(b, &a); err != nil {
			os.Exit(1)
		}
		fmt.Println(string(b[12:a.N]))
	}
}

type process struct {
	*exec.Cmd
	output *bufio.Scanner
}

func started(t *testing.T, port int) process {
	t.Helper()
	p := process{Cmd: exec.Command(os.Args[0])}
	p.Env = append(os.Environ(), fmt.Sprint(asMember, "=", port))
	out, err := p.StdoutPipe()
	require.NoError(t, err)
	in, err := p.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, p.Start())
	t.Cleanup(func() { in.Close(); p.Process.Kill(); p.Wait() })
	p.output = bufio.NewScanner(out)
	return p
}

func (p process) line(t *testing.T) string {
	t.Helper()
	stop := time.AfterFunc(limit, func() { p.Process.Kill() })
	defer stop.Stop()
	require.True(t, p.output.Scan(), "the process ended")
	return p.output.Text()
}

// TestMembersAreKilled: any of several processes may be killed at any time.
func TestMembersAreKilled(t *testing.T) {
	port, from := free(t, v4), opened(t, v4, Options{})
	to := netip.AddrPortFrom(v4, uint16(port))
	processes := map[int]process{}
	start := func(want int) {
		p := started(t, port)
		require.Equal(t, strconv.Itoa(want), p.line(t))
		processes[want] = p
	}
	check := func() {
		for member, p := range processes {
			text := fmt.Sprint("to member ", member)
			packet := forQP(uint32(member)<<18|7, text)
			_, err := from.Write(to, packet, len(packet))
			require.NoError(t, err)
			require.Equal(t, text, p.line(t))
		}
	}
	kill := func(member int) {
		require.NoError(t, processes[member].Process.Kill())
		processes[member].Wait()
		delete(processes, member)
	}
	for i := range 4 {
		start(i)
	}
	check()
	kill(0)
	check()
	kill(2)
	check()
	start(0) // gets the lowest free number
	check()
	kill(3)
	kill(1)
	check()
	start(1)
	start(2)
	check()
	for i := range 3 {
		kill(i)
	}
	start(0)
	check()
}

// TestServices: a service belongs to one member. After its release, or the end of the process, another member can claim
// it.
func TestServices(t *testing.T) {
	const service, other = 0x106_1234, 0x106_1235
	for _, addr := range []netip.Addr{v4, v6} {
		port := free(t, addr)
		a, b := shared(t, addr, port), shared(t, addr, port)
		_, ok := b.Claimed(service)
		assert.False(t, ok)
		assert.Empty(t, b.Claimant(service))
		claim, err := b.Claim(service)
		require.NoError(t, err)
		next, err := a.Claim(other)
		require.NoError(t, err)
		defer next.Close()
		for _, m := range []*Socket{a, b, shared(t, addr, port)} {
			_, err = m.Claim(service)
			require.ErrorIs(t, err, syscall.EADDRINUSE)
			assert.Contains(t, m.Claimant(service), fmt.Sprintf(`process %d ("udp.test")`, os.Getpid()))
			for service, of := range map[uint64]*Socket{service: b, other: a} {
				member, ok := m.Claimed(service)
				assert.True(t, ok)
				assert.Equal(t, of.Member(), member)
			}
			assert.Equal(t, a.Secret(), m.Secret())
			for _, none := range []uint64{service - 1, other + 1, 0x111_1234, 1<<64 - 1} {
				_, ok = m.Claimed(none)
				assert.False(t, ok, "%#x", none)
			}
		}
		claim.Close()
		_, ok = a.Claimed(service)
		assert.False(t, ok)
		claim, err = a.Claim(service)
		require.NoError(t, err)
		claim.Close()
	}
	alone := opened(t, v4, Options{})
	claim, err := alone.Claim(1)
	require.NoError(t, err)
	claim.Close()
	_, ok := alone.Claimed(1)
	assert.False(t, ok)
	assert.NotEqual(t, shared(t, v4, free(t, v4)).Secret(), shared(t, v4, free(t, v4)).Secret(), "two groups")
}

// TestStopped: while a member is stopped, the address is in use. The error is returned promptly and names the process.
func TestStopped(t *testing.T) {
	port := free(t, v4)
	member := started(t, port)
	require.Equal(t, "0", member.line(t))
	stop(t, member.Process)
	begin := time.Now()
	_, err := Open(v4, Options{Port: port, Share: true})
	assert.Less(t, time.Since(begin), soonEnough)
	assert.ErrorIs(t, err, syscall.EADDRINUSE)
	assert.ErrorContains(t, err, fmt.Sprintf("process %d is stopped", member.Process.Pid))
	require.NoError(t, member.Process.Signal(syscall.SIGCONT))
	shared(t, v4, port)
}

func stop(t *testing.T, p *os.Process) {
	require.NoError(t, p.Signal(syscall.SIGSTOP))
	require.Eventually(t, func() bool { return isStopped(int32(p.Pid)) }, limit, time.Millisecond)
}

// TestStoppedWithLock is TestStopped for a process that holds the lock.
func TestStoppedWithLock(t *testing.T) {
	port := free(t, v4)
	name := fmt.Sprintf("@goverbs-udp/%v/lock", netip.AddrPortFrom(v4, uint16(port)))
	p := exec.Command(os.Args[0])
	p.Env = append(os.Environ(), asStranger+"=listen "+name)
	in, err := p.StdinPipe()
	require.NoError(t, err)
	out, err := p.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, p.Start())
	defer func() { in.Close(); _ = p.Process.Kill(); _ = p.Wait() }()
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "ready\n", line)
	stop(t, p.Process)
	begin := time.Now()
	_, err = Open(v4, Options{Port: port, Share: true})
	assert.Less(t, time.Since(begin), soonEnough)
	assert.ErrorIs(t, err, syscall.EADDRINUSE)
	assert.ErrorContains(t, err, fmt.Sprintf("process %d is stopped", p.Process.Pid))
}

// TestLeadIsKilled: soon after the lead is killed, another member receives the packets that are addressed to no
// particular member, also after others join.
func TestLeadIsKilled(t *testing.T) {
	port, from := free(t, v4), opened(t, v4, Options{})
	first := started(t, port)
	require.Equal(t, "0", first.line(t))
	members := []*Socket{shared(t, v4, port), shared(t, v4, port), shared(t, v4, port)}
	require.NoError(t, first.Process.Kill())
	first.Wait()
	killed := time.Now()
	lead := leadOf(t, members)
	t.Log("another member became the lead after", time.Since(killed))
	members = append(members, shared(t, v4, port))
	assert.Equal(t, 0, members[3].Member())
	for _, packet := range forLead {
		delivered(t, from, lead, packet)
	}
	require.NoError(t, lead.Close())
	next := leadOf(t, members)
	require.NotSame(t, lead, next)
	for _, packet := range forLead {
		delivered(t, from, next, packet)
	}
}

// TestForeignLead: a process outside the group, here of this user, has the name of the lead. Members notice its end,
// too.
func TestForeignLead(t *testing.T) {
	port, from := free(t, v4), opened(t, v4, Options{})
	prefix := fmt.Sprintf("@goverbs-udp/%v/", netip.AddrPortFrom(v4, uint16(port)))
	l, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: prefix + "lead"})
	require.NoError(t, err)
	m := shared(t, v4, port)
	for _, packet := range forLead { // the only member
		delivered(t, from, m, packet)
	}
	require.NoError(t, l.Close())
	assert.Same(t, m, leadOf(t, []*Socket{m}))
}

// BenchmarkSteering writes and reads 15 datagrams of 4136 bytes, or one of 76, to one of several members of an address,
// and to a socket that is not shared.
func BenchmarkSteering(b *testing.B) {
	for _, size := range []struct{ count, bytes int }{{15, 4136}, {1, 76}} {
		for _, members := range []int{0, 1, 8, MaxMembers} {
			b.Run(fmt.Sprintf("%dx%d/members=%d", size.count, size.bytes, members), func(b *testing.B) {
				steer(b, size.count, size.bytes, members)
			})
		}
	}
}

func steer(b *testing.B, count, bytes, members int) {
	local, remote := opened(b, v4, Options{}), (*Socket)(nil)
	if members == 0 {
		remote = opened(b, v4, Options{})
	}
	for port := free(b, v4); members > 0; members-- {
		remote = shared(b, v4, port)
	}
	sent, got := datagrams(count, bytes, bytes), make([]byte, MaxRead)
	for d := range slices.Chunk(sent, bytes) {
		binary.BigEndian.PutUint32(d[bthQPN:], QPsOf(remote.Member())+2)
	}
	b.SetBytes(int64(len(sent)))
	for b.Loop() {
		if _, err := local.Write(remote.Addr(), sent, bytes); err != nil {
			b.Fatal(err)
		}
		receiveInto(b, remote, got, len(sent))
	}
}
