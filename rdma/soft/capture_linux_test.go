// SPDX-License-Identifier: BSD-2-Clause

package soft_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/rdmacm"
	"github.com/goverbs/goverbs/rdma/soft"
	"github.com/goverbs/goverbs/rdma/soft/internal/packet"
	"github.com/goverbs/goverbs/rdma/stream"
)

// frame is tshark's dissection of a packet.
type frame struct {
	source, dest string
	opcode       uint64 // BTH
	attribute    uint64 // MAD attribute, or 0
	line         string
}

// dissect runs tshark on a capture. The test fails if tshark reports a malformed packet or a wrong checksum. tshark
// does not check the ICRC, so dissect does.
func dissect(t *testing.T, file []byte) (frames []frame) {
	t.Helper()
	checkICRCs(t, file)
	tshark, err := exec.LookPath("tshark")
	if err != nil && os.Getenv("GOVERBS_TSHARK") == "" {
		t.Skip("tshark is not installed")
	}
	require.NoError(t, err)
	name := filepath.Join(t.TempDir(), "run.pcap")
	require.NoError(t, os.WriteFile(name, file, 0o600))
	fields := []string{"ip.src", "ip.dst", "ipv6.src", "ipv6.dst", "infiniband.bth.opcode",
		"infiniband.mad.attributeid", "_ws.malformed", "_ws.expert", "ip.checksum.status", "udp.checksum.status"}
	args := []string{"-r", name, "-n", "-o", "ip.check_checksum:TRUE", "-o", "udp.check_checksum:TRUE",
		"--disable-protocol", "rpcordma", "-T", "fields"} // it mistakes other payloads for its own
	for _, f := range fields {
		args = append(args, "-e", f)
	}
	cmd := exec.Command(tshark, args...)
	var complaints bytes.Buffer
	cmd.Stderr = &complaints
	out, err := cmd.Output()
	require.NoError(t, err, "%s", &complaints)
	for line := range strings.Lines(string(out)) {
		v := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		require.Len(t, v, len(fields))
		f := frame{source: v[0] + v[2], dest: v[1] + v[3], line: line}
		f.opcode, err = strconv.ParseUint(v[4], 0, 8)
		require.NoError(t, err, line)
		if v[5] != "" {
			f.attribute, err = strconv.ParseUint(v[5], 0, 16)
			require.NoError(t, err, line)
		}
		require.Empty(t, v[6]+v[7], "packet %d is malformed: %s", len(frames)+1, line)
		right := []string{"", "1", "1"} // IPv6: no header checksum, good UDP checksum
		if v[0] != "" {
			right = []string{"", "1", "3"} // IPv4: good header checksum, no UDP checksum
		}
		require.Equal(t, right[1:], []string{max(v[8], "1"), v[9]}, line)
		frames = append(frames, f)
	}
	return frames
}

// checkICRCs fails the test if a packet of a capture has a wrong ICRC.
func checkICRCs(t *testing.T, file []byte) {
	t.Helper()
	const fileHeader, header, udp = 24, 16, 8
	for b := file[fileHeader:]; len(b) > 0; {
		n := binary.LittleEndian.Uint32(b[8:])
		p := b[header:][:n]
		b = b[header+n:]
		var from, to packet.Endpoint
		id, size := uint16(0), 40
		if p[0]>>4 == 4 {
			from.GID = netip.AddrFrom4([4]byte(p[12:])).As16()
			to.GID = netip.AddrFrom4([4]byte(p[16:])).As16()
			id, size = binary.BigEndian.Uint16(p[4:]), 20
		} else {
			from.GID, to.GID = [16]byte(p[8:]), [16]byte(p[24:])
		}
		from.Port, to.Port = binary.BigEndian.Uint16(p[size:]), binary.BigEndian.Uint16(p[size+2:])
		got, ok := packet.Check(p[size+udp:], &from, &to, id)
		require.True(t, ok && got == id, "ICRC of %x", p)
	}
}

// opcodes counts packets by opcode. MADs are counted under 0x10000 plus their attribute.
func opcodes(frames []frame) map[uint64]int {
	all := map[uint64]int{}
	for _, f := range frames {
		if f.attribute != 0 {
			all[0x10000|f.attribute]++
		} else {
			all[f.opcode]++
		}
	}
	return all
}

// run returns the packets that a fabric sends and receives while f runs.
func run(t *testing.T, f *soft.Fabric, meanwhile func()) []byte {
	t.Helper()
	var file bytes.Buffer
	c, err := f.Capture(&file)
	require.NoError(t, err)
	meanwhile()
	require.NoError(t, c.Close())
	_, lost := c.Counts()
	require.Zero(t, lost)
	return file.Bytes()
}

// Expected opcodes of a run, for RC including responses.
var (
	rcOpcodes = slices.Concat(seq(0x00, 0x14), []uint64{0x16, 0x17, 0x1c, 0x1d})
	ucOpcodes = seq(0x20, 0x2b)
)

func seq(first, last uint64) (all []uint64) {
	for v := first; v <= last; v++ {
		all = append(all, v)
	}
	return all
}

func keys[V any](of map[uint64]V) []uint64 { return slices.Sorted(maps.Keys(of)) }

// wiredTwo returns two fabrics with a device each, and the addresses of packets between them.
func wiredTwo(t *testing.T, v6 bool) (f [2]*soft.Fabric, addresses []string) {
	addresses = []string{"127.0.2.1", "127.0.2.2"}
	if v6 {
		where, ok := groupPlaceIPv6(t)
		if !ok {
			t.Skip("no interface of this machine has two IPv6 addresses")
		}
		addresses = []string{where.first, where.second}
	}
	f = [2]*soft.Fabric{fabricAt(t, addresses[0]), fabricAt(t, addresses[1])}
	for i, a := range addresses {
		addresses[i] = netip.MustParseAddr(a).WithZone("").String()
	}
	return f, addresses
}

// TestCaptureOfEveryOpcode captures every operation on reliable and unreliable connections, at both ends, and checks
// the opcodes that tshark lists.
func TestCaptureOfEveryOpcode(t *testing.T) {
	for _, c := range []struct {
		kind ibv.QPType
		want []uint64
	}{{ibv.QPT_RC, rcOpcodes}, {ibv.QPT_UC, ucOpcodes}} {
		for _, v6 := range []bool{false, true} {
			t.Run(fmt.Sprintf("%v v6 %v", c.kind, v6), func(t *testing.T) {
				f, addresses := wiredTwo(t, v6)
				a, b := newRunner(t, f[0], "soft0", c.kind), newRunner(t, f[1], "soft0", c.kind)
				a.connect(b, everyRequestMTU)
				b.connect(a, everyRequestMTU)
				var files [2][]byte
				files[0] = run(t, f[0], func() {
					files[1] = run(t, f[1], func() {
						everyRequest(a, b, everySize)
						sent := f[0].HWCounters("soft0")["sent_pkts"] // UC packets may not have arrived yet
						waitFor(t, func() bool { return f[1].HWCounters("soft0")["rcvd_pkts"] == sent })
					})
				})
				for _, file := range files {
					frames := dissect(t, file)
					assert.Equal(t, c.want, keys(opcodes(frames)))
					for _, x := range frames {
						if assert.Contains(t, addresses, x.source); x.source == x.dest {
							t.Errorf("from and to %s", x.source)
						}
					}
				}
			})
		}
	}
}

// waitFor waits until a condition holds.
func waitFor(t *testing.T, is func() bool) {
	t.Helper()
	for end := time.Now().Add(bound); !is(); {
		require.True(t, time.Now().Before(end), "timed out")
		time.Sleep(time.Millisecond)
	}
}

// TestCaptureInMemory: packets in memory, including retransmissions of lost ones, are captured once each, with the
// virtual clock's times.
func TestCaptureInMemory(t *testing.T) {
	for _, kind := range []string{"packets", "lossy:3:5"} {
		for _, addresses := range [][2]string{{"192.0.2.1", "192.0.2.2"}, {"2001:db8::1", "2001:db8::2"}} {
			t.Setenv("GOVERBS_SOFT_WIRE", kind)
			f, err := soft.New(soft.Options{Virtual: true, Devices: []soft.DeviceOptions{
				{Address: netip.MustParseAddr(addresses[0])}, {Address: netip.MustParseAddr(addresses[1])}}})
			require.NoError(t, err)
			t.Cleanup(func() { assert.NoError(t, f.Close()) })
			a, b := newRunner(t, f, "soft0", ibv.QPT_RC), newRunner(t, f, "soft1", ibv.QPT_RC)
			a.connect(b, everyRequestMTU)
			b.connect(a, everyRequestMTU)
			file := run(t, f, func() { everyRequest(a, b, everySize) })
			assert.Less(t, binary.LittleEndian.Uint32(file[24:]), uint32(3600), "seconds of the virtual clock")
			frames := dissect(t, file)
			assert.Equal(t, rcOpcodes, keys(opcodes(frames)), "%s %v", kind, addresses)
			const reads = 1 + 1 + 1 + 1 + 1 + 4 // requests of at most 16 packets
			if n := opcodes(frames)[0x0c]; kind == "packets" {
				assert.Equal(t, reads, n)
			} else {
				assert.Greater(t, n, reads)
			}
		}
	}
}

// TestCaptureOfConnections: tshark dissects the messages of the connection manager, including SIDR.
func TestCaptureOfConnections(t *testing.T) {
	const req, rej, rep, rtu, dreq, drep, sidrReq, sidrRep = 0x10010, 0x10012, 0x10013, 0x10014, 0x10015, 0x10016,
		0x10017, 0x10018
	for _, c := range []struct {
		space rdmacm.PortSpace
		run   func(*testing.T, *twoFabrics)
		want  []uint64
	}{
		{rdmacm.PS_TCP, connectionBetween, []uint64{0x04, 0x11, req, rep, rtu, dreq, drep}},
		{rdmacm.PS_TCP, rejectedBetween, []uint64{req, rej}},
		{rdmacm.PS_UDP, datagramsBetween, []uint64{0x64, sidrReq, sidrRep}},
	} {
		t.Run(fmt.Sprintf("%#x", c.want), func(t *testing.T) {
			a := newTwoFabrics(t, c.space, 0)
			file := run(t, a.fabrics[1], func() { c.run(t, a) })
			assert.Equal(t, c.want, keys(opcodes(dissect(t, file))))
		})
	}
}

// TestCaptureOfGroups: datagrams to a group are captured.
func TestCaptureOfGroups(t *testing.T) {
	f, _ := wiredTwo(t, false)
	sender, remote := newMember(t, f[0]), newMember(t, f[1])
	var group ibv.GID
	*group.Raw() = netip.MustParseAddr("224.0.1.78").As16()
	require.NoError(t, remote.qp.AttachMcast(group, 0))
	file := run(t, f[1], func() {
		sender.send(group, "\xe1\xe2\xe3\xe4")
		require.Len(t, remote.got(1, bound), 1)
	})
	frames := dissect(t, file)
	require.Len(t, frames, 1)
	assert.EqualValues(t, 0x64, frames[0].opcode)
	assert.Equal(t, "224.0.1.78", frames[0].dest)
}

// TestCaptureDuringChanges: captures begin and end during traffic, the device is removed, and writers fail or block.
// Traffic must continue undisturbed.
func TestCaptureDuringChanges(t *testing.T) {
	p := newPair(t, "127.0.2.3", "127.0.2.4", 1<<16)
	p.sends.Reset()
	p.sends.Write(1, p.there.Address(), p.there.RKey()).Add(p.here.SGE(0, 1<<16)).Signaled()
	blocked, w := io.Pipe()
	go io.ReadFull(blocked, make([]byte, 24))
	slow, err := p.fabric[0].Capture(w)
	require.NoError(t, err)
	stop := make(chan struct{})
	var many sync.WaitGroup
	for i := range 3 {
		many.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				c, err := p.fabric[i%2].Capture(&failing{left: 1 + i})
				if assert.NoError(t, err) {
					c.Close()
				}
			}
		})
	}
	for range 300 {
		p.run(t)
	}
	require.True(t, p.fabric[1].RemoveDevice("soft0"))
	close(stop)
	many.Wait()
	written, lost := slow.Counts()
	assert.Zero(t, written)
	assert.NotZero(t, lost, "20 MB do not fit into the capture buffer")
	require.NoError(t, blocked.Close())
	require.ErrorIs(t, slow.Close(), io.ErrClosedPipe)
}

// failing fails after some writes.
type failing struct{ left int }

func (f *failing) Write(b []byte) (int, error) {
	if f.left--; f.left < 0 {
		return 0, io.ErrShortWrite
	}
	return len(b), nil
}

// TestCaptureRefused: a capture needs a writer and a device with a wire.
func TestCaptureRefused(t *testing.T) {
	f, err := soft.New(soft.Options{})
	require.NoError(t, err)
	defer f.Close()
	if os.Getenv("GOVERBS_SOFT_WIRE") == "" {
		_, err = f.Capture(io.Discard)
		require.ErrorContains(t, err, "DeviceOptions.Wire")
	}
	_, err = fabricAt(t, "127.0.2.5").Capture(nil)
	require.ErrorContains(t, err, "writer is nil")
	_, err = fabricAt(t, "127.0.2.6").Capture(&failing{})
	require.ErrorIs(t, err, io.ErrShortWrite)
}

// TestCaptureByEnvironment: a process captures to the file in the variable, and reports an error if it cannot write it.
func TestCaptureByEnvironment(t *testing.T) {
	name := filepath.Join(t.TempDir(), "capture-%p")
	t.Setenv("GOVERBS_SOFT_CAPTURE", name)
	p := startPeer(t, "127.0.2.7")
	c, err := dialer(stream.Config{Backend: fabricAt(t, "127.0.2.8")}).Dial(t.Context(), p.at(echoPort))
	require.NoError(t, err)
	_, err = c.Write([]byte("\xe1\xe2\xe3\xe4"))
	require.NoError(t, err)
	_, err = io.ReadFull(c, make([]byte, 4))
	require.NoError(t, err)
	require.NoError(t, c.Close())
	name = strings.ReplaceAll(name, "%p", strconv.Itoa(p.command.Process.Pid))
	var file []byte
	require.Eventually(t, func() bool { // written in the background
		before := len(file)
		file, err = os.ReadFile(name)
		return err == nil && len(file) == before && bytes.Contains(file, []byte("\xe1\xe2\xe3\xe4"))
	}, bound, 100*time.Millisecond)
	p.kill()
	assert.Subset(t, keys(opcodes(dissect(t, file))), []uint64{0x11, 0x10010, 0x10013, 0x10014})
	t.Setenv("GOVERBS_SOFT_CAPTURE", "/proc/nothing")
	other := exec.Command(os.Args[0])
	other.Env = append(os.Environ(), asPeer+"=127.0.2.9", "GOVERBS_DEVICE=soft@127.0.2.9")
	text, err := other.CombinedOutput()
	require.Error(t, err)
	assert.Contains(t, string(text), `GOVERBS_SOFT_CAPTURE: create: "/proc/nothing"`)
}
