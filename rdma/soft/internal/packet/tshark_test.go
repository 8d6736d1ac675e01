// SPDX-License-Identifier: BSD-2-Clause

package packet_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/soft/internal/mem"
	"github.com/goverbs/goverbs/rdma/soft/internal/message"
	"github.com/goverbs/goverbs/rdma/soft/internal/packet"
	"github.com/goverbs/goverbs/rdma/soft/internal/pcap"
)

// dissection is tshark's dissection of a packet: the names of fields, without "infiniband.", and their values. Numbers
// are decimal, bytes hexadecimal. The payload includes its pad.
type dissection map[string]string

func n[T ~uint8 | ~uint16 | ~uint32 | ~uint64 | ~int](v T) string {
	return strconv.FormatUint(uint64(v), 10)
}

// sample is a packet and its expected dissection.
type sample struct {
	name string
	p    []byte
	want dissection
}

// show is an Output that keeps the packets.
type show [][]byte

func (s *show) Packet(n int) []byte {
	*s = append(*s, make([]byte, n))
	return (*s)[len(*s)-1]
}

// content is a payload that tshark does not mistake for another protocol.
var content = []byte{0xe1, 0xe2, 0xe3, 0xe4, 0xe5}

func payload() []mem.Segment {
	return []mem.Segment{{Base: mem.AddressOf(&content[0]), Length: uint64(len(content))}}
}

// requests returns the packets of every kind of request.
func requests() (all []sample) {
	type operation struct {
		opcode          uint8
		op              ibv.WROpcode
		continues, more bool
		headers         string
	}
	operations := []operation{
		{0x00, ibv.WR_SEND_WITH_IMM, false, true, "payload"},
		{0x01, ibv.WR_SEND_WITH_INV, true, true, "payload"},
		{0x02, ibv.WR_SEND, true, false, "payload"},
		{0x03, ibv.WR_SEND_WITH_IMM, true, false, "payload immdt"},
		{0x04, ibv.WR_SEND, false, false, "payload"},
		{0x05, ibv.WR_SEND_WITH_IMM, false, false, "payload immdt"},
		{0x06, ibv.WR_RDMA_WRITE_WITH_IMM, false, true, "payload reth"},
		{0x07, ibv.WR_RDMA_WRITE, true, true, "payload"},
		{0x08, ibv.WR_RDMA_WRITE, true, false, "payload"},
		{0x09, ibv.WR_RDMA_WRITE_WITH_IMM, true, false, "payload immdt"},
		{0x0a, ibv.WR_RDMA_WRITE, false, false, "payload reth"},
		{0x0b, ibv.WR_RDMA_WRITE_WITH_IMM, false, false, "payload reth immdt"},
		{0x0c, ibv.WR_RDMA_READ, false, false, "reth"},
		{0x13, ibv.WR_ATOMIC_CMP_AND_SWP, false, false, "atomiceth"},
		{0x14, ibv.WR_ATOMIC_FETCH_AND_ADD, false, false, "atomiceth"},
		{0x16, ibv.WR_SEND_WITH_INV, true, false, "payload ieth"},
		{0x17, ibv.WR_SEND_WITH_INV, false, false, "payload ieth"},
		{0x1c, ibv.WR_FLUSH, false, false, ""},
		{0x1d, ibv.WR_ATOMIC_WRITE, false, false, ""},
	}
	for _, t := range []struct {
		transport ibv.QPType
		base      uint8
		of        func(operation) bool
	}{
		{ibv.QPT_RC, 0x00, func(operation) bool { return true }},
		{ibv.QPT_UC, 0x20, func(o operation) bool { return o.opcode <= 0x0b || o.op == ibv.WR_SEND_WITH_INV }},
		{ibv.QPT_UD, 0x60, func(o operation) bool { return o.opcode == 0x04 || o.opcode == 0x05 }},
		{ibv.QPT_XRC_SEND, 0xa0, func(operation) bool { return true }},
	} {
		for _, o := range operations {
			if !t.of(o) {
				continue
			}
			reliable := t.transport == ibv.QPT_RC || t.transport == ibv.QPT_XRC_SEND
			m := &message.Request{Transport: t.transport, Opcode: o.op, Continues: o.continues, More: o.more,
				Solicited: true, AckReq: reliable, PKey: 0x8001, DestQP: 0x123456, SourceQP: 0xabcdef, PSN: 0xfedcba,
				QKey: 0x81234567, SRQ: 0x654321, Imm: ibv.ToBE32(0xdeadbeef), Remote: 0x1122334455667788,
				RKey: 0x99aabbcc, Length: 0x01020304, Operand: 0x0102030405060708, Swap: 0x1112131415161718}
			switch o.op {
			case ibv.WR_SEND_WITH_INV:
				m.Imm = 0xfeedface
			case ibv.WR_ATOMIC_WRITE: // in memory byte order
				m.Operand = binary.NativeEndian.Uint64([]byte{8, 7, 6, 5, 4, 3, 2, 1})
			}
			want := dissection{"bth.opcode": n(t.base | o.opcode), "bth.se": "1", "bth.padcnt": "0", "bth.tver": "0",
				"bth.p_key": n(0x8001), "bth.destqp": n(0x123456), "bth.psn": n(0xfedcba), "bth.a": "0"}
			if reliable {
				want["bth.a"] = "1"
			}
			if o.more {
				want["bth.se"] = "0"
			}
			if strings.Contains(o.headers, "payload") {
				m.Payload, want["bth.padcnt"] = payload(), "3"
			}
			// Wireshark 4.0 does not dissect unknown opcodes beyond the BTH.
			if t.transport != ibv.QPT_XRC_SEND && (t.transport != ibv.QPT_UC || o.opcode < 0x16) {
				dissection := map[string]dissection{
					"payload": {"data.data": "e1e2e3e4e5000000"},
					"reth":    {"reth.va": n(m.Remote), "reth.r_key": n(m.RKey), "reth.dmalen": n(m.Length)},
					"immdt":   {"immdt": "deadbeef"},
					"ieth":    {"ieth": "feedface"},
					"atomiceth": {"reth.va": n(m.Remote), "reth.r_key": n(m.RKey),
						"atomiceth.swapdt": n(m.Swap), "atomiceth.cmpdt": n(m.Operand)},
				}
				for h := range strings.FieldsSeq(o.headers) {
					for k, v := range dissection[h] {
						want[k] = v
					}
				}
				if o.op == ibv.WR_ATOMIC_FETCH_AND_ADD {
					want["atomiceth.swapdt"], want["atomiceth.cmpdt"] = n(m.Operand), "0"
				}
				if t.transport == ibv.QPT_UD {
					want["deth.q_key"], want["deth.srcqp"] = n(m.QKey), n(m.SourceQP)
				}
			}
			var out show
			packet.AppendRequest(&out, m)
			all = append(all, sample{fmt.Sprintf("%v %v %#x", t.transport, o.op, o.opcode), out[0], want})
		}
	}
	return all
}

// answers returns the packets of every kind of answer.
func answers() (all []sample) {
	for _, c := range []struct {
		opcode uint8
		a      message.Answer
		want   dissection
	}{
		{0x11, message.Answer{}, dissection{"aeth.syndrome": n(0x1f)}},
		{0x11, message.Answer{Syndrome: message.NotReady, Timer: 12},
			dissection{"aeth.syndrome": n(0x2c), "aeth.syndrome.opcode": "1", "aeth.syndrome.timer": "12"}},
		{0x11, message.Answer{Syndrome: message.OutOfOrder},
			dissection{"aeth.syndrome": n(0x60), "aeth.syndrome.opcode": "3", "aeth.syndrome.error_code": "0"}},
		{0x11, message.Answer{Syndrome: message.InvalidRequest},
			dissection{"aeth.syndrome": n(0x61), "aeth.syndrome.opcode": "3", "aeth.syndrome.error_code": "1"}},
		{0x11, message.Answer{Syndrome: message.RemoteAccess},
			dissection{"aeth.syndrome": n(0x62), "aeth.syndrome.opcode": "3", "aeth.syndrome.error_code": "2"}},
		{0x11, message.Answer{Syndrome: message.RemoteOperation},
			dissection{"aeth.syndrome": n(0x63), "aeth.syndrome.opcode": "3", "aeth.syndrome.error_code": "3"}},
		{0x12, message.Answer{Kind: message.AtomicData, Original: 0x0102030405060708},
			dissection{"aeth.syndrome": n(0x1f), "atomicacketh.origremdt": n(uint64(0x0102030405060708))}},
		{0x0d, message.Answer{Kind: message.ReadData, More: true, Data: payload()},
			dissection{"aeth.syndrome": n(0x1f), "data.data": "e1e2e3e4e5000000", "bth.padcnt": "3"}},
		{0x0e, message.Answer{Kind: message.ReadData, Continues: true, More: true, Data: payload()},
			dissection{"data.data": "e1e2e3e4e5000000", "bth.padcnt": "3"}},
		{0x0f, message.Answer{Kind: message.ReadData, Continues: true, Data: payload()},
			dissection{"aeth.syndrome": n(0x1f), "data.data": "e1e2e3e4e5000000", "bth.padcnt": "3"}},
		{0x10, message.Answer{Kind: message.ReadData, Data: payload()},
			dissection{"aeth.syndrome": n(0x1f), "data.data": "e1e2e3e4e5000000", "bth.padcnt": "3"}},
		{0x10, message.Answer{Kind: message.ReadData}, dissection{"aeth.syndrome": n(0x1f)}},
	} {
		for _, t := range []struct {
			transport ibv.QPType
			base      uint8
		}{{ibv.QPT_RC, 0}, {ibv.QPT_XRC_SEND, 0xa0}} {
			a := c.a
			a.Transport, a.DestQP, a.PSN, a.PKey, a.Count = t.transport, 0x123456, 0xfedcba, 0x8001, 0x345678
			want := dissection{"bth.opcode": n(t.base | c.opcode), "bth.se": "0", "bth.a": "0", "bth.padcnt": "0",
				"bth.tver": "0", "bth.p_key": n(0x8001), "bth.destqp": n(0x123456), "bth.psn": n(0xfedcba)}
			for k, v := range c.want {
				if t.base == 0 || strings.HasPrefix(k, "bth.") { // Wireshark 4.0 does not support XRC
					want[k] = v
				}
			}
			if want["aeth.syndrome"] != "" {
				want["aeth.msn"] = n(0x345678)
				if want["aeth.syndrome.opcode"] == "" {
					want["aeth.syndrome.opcode"] = "0"
				}
			}
			var out show
			packet.AppendAnswer(&out, &a)
			all = append(all, sample{fmt.Sprintf("%v answer %#x %v", t.transport, c.opcode, a.Syndrome), out[0], want})
		}
	}
	return all
}

// mads returns the packets of every message of the connection manager.
func mads(t *testing.T) (all []sample) {
	const local, remote = 0x11223344, 0x55667788
	for attribute := message.REQ; attribute <= message.SIDRRep; attribute++ {
		m := &message.MAD{Attribute: attribute, TID: 0x0102030405060708, LocalID: local, RemoteID: remote}
		want := dissection{"bth.opcode": n(0x64), "bth.destqp": "1", "bth.p_key": n(0xffff), "bth.psn": n(0x777777),
			"bth.a": "0", "bth.se": "0", "bth.padcnt": "0", "bth.tver": "0", "deth.q_key": n(uint32(0x80010000)),
			"deth.srcqp":    "1",
			"mad.mgmtclass": "7", "mad.baseversion": "1", "mad.classversion": "2", "mad.method": "3",
			"mad.transactionid": n(m.TID), "mad.attributeid": n(attribute)}
		switch attribute {
		case message.REQ:
			m.RemoteID, m.ServiceID, m.PKey, m.QPN, m.PSN = 0, 0x01061234, 0xffff, 0x123456, 0x654321
			m.Path = message.Path{Local: v6(1), Remote: v6(2), MTU: ibv.MTU_1024, HopLimit: 64, AckTimeout: 19}
			m.Source, m.Dest = netip.MustParseAddrPort("192.0.2.1:5555"), netip.MustParseAddr("192.0.2.2")
			m.ResponderResources, m.InitiatorDepth, m.RetryCount, m.RNRRetryCount, m.MaxRetries = 3, 4, 5, 6, 15
			m.RemoteTimeout, m.LocalTimeout, m.CAGUID = 20, 21, 0x0a0b0c0d0e0f0102
			for k, v := range (dissection{"": n(local), ".serviceid": n(m.ServiceID), ".serviceid.dport": n(0x1234),
				".localqpn": n(m.QPN), ".startpsn": n(m.PSN), ".pkey": n(m.PKey), ".pppmtu": n(ibv.MTU_1024),
				".responderres": "3", ".initdepth": "4", ".retrcount": "5", ".rnrretrcount": "6", ".maxcmretr": "15",
				".remoteresptout": "20", ".localresptout": "21", ".localcaguid": n(m.CAGUID),
				".prim_localgid": "2001:db8::1", ".prim_remotegid": "2001:db8::2", ".prim_hoplim": "64",
				".prim_localacktout": "19", ".ip_cm.ipv": "4", ".ip_cm.sport": "5555", ".ip_cm.sip4": "192.0.2.1",
				".ip_cm.dip4": "192.0.2.2", ".transpsvctype": "0"}) {
				want["cm.req"+k] = v
			}
		case message.REP:
			m.QPN, m.PSN, m.ResponderResources, m.InitiatorDepth, m.RNRRetryCount = 0x123456, 0x654321, 3, 4, 6
			m.CAGUID = 0x0a0b0c0d0e0f0102
			for k, v := range (dissection{"": n(local), ".remotecommid": n(remote), ".localqpn": n(m.QPN),
				".startpsn": n(m.PSN), ".respres": "3", ".initdepth": "4", ".rnrretrcount": "6",
				".localcaguid": n(m.CAGUID)}) {
				want["cm.rep"+k] = v
			}
		case message.REJ:
			m.Reason, m.Of = message.RejectConsumer, message.OfREP
			want["cm.rej.localcommid"], want["cm.rej.remotecommid"] = n(local), n(remote)
			want["cm.rej.reason"], want["cm.rej.msgrej"] = "28", "1"
		case message.RTU:
			want["cm.rtu.localcommid"], want["cm.rtu.remotecommid"] = n(local), n(remote)
		case message.DREQ:
			m.QPN = 0x123456
			want["cm.dreq.localcommid"], want["cm.dreq.remotecommid"] = n(local), n(remote)
			want["cm.req.remoteqpneecn"] = n(m.QPN)
		case message.DREP:
			want["cm.drsp.localcommid"], want["cm.drsp.remotecommid"] = n(local), n(remote)
		case message.SIDRReq:
			m.RemoteID = 0
			m.Source, m.Dest = netip.MustParseAddrPort("192.0.2.1:5555"), netip.MustParseAddr("192.0.2.2")
		case message.SIDRRep:
			m.LocalID = 0
		}
		var out show
		require.NoError(t, packet.AppendMAD(&out, m, 0x777777))
		all = append(all, sample{attribute.String(), out[0], want})
	}
	return all
}

func v6(last byte) [16]byte { return [16]byte{0x20, 1, 0xd, 0xb8, 15: last} }

func v4(last byte) [16]byte { return [16]byte{10: 0xff, 11: 0xff, 12: 192, 14: 2, 15: last} }

// ways lists the addresses of captured packets.
var ways = []struct {
	name         string
	from, to     packet.Endpoint
	source, dest string // as printed by tshark
}{
	{"IPv4", packet.Endpoint{GID: v4(1), Port: 50000}, packet.Endpoint{GID: v4(2), Port: packet.Port}, "192.0.2.1",
		"192.0.2.2"},
	{"IPv6", packet.Endpoint{GID: v6(1), Port: 50000}, packet.Endpoint{GID: v6(2), Port: packet.Port}, "2001:db8::1",
		"2001:db8::2"},
}

// TestTshark: Wireshark's dissector reads a capture of every packet, over IPv4 and IPv6, without warnings, and returns
// the encoded values.
func TestTshark(t *testing.T) {
	tshark, err := exec.LookPath("tshark")
	if err != nil && os.Getenv("GOVERBS_TSHARK") == "" {
		t.Skip("tshark is not installed")
	}
	require.NoError(t, err)
	all := append(append(requests(), answers()...), mads(t)...)
	var file bytes.Buffer
	var captures pcap.Captures
	capture, err := captures.Start(&file)
	require.NoError(t, err)
	at := time.Unix(1_700_000_000, 123_456_789)
	for _, s := range all {
		for i := range ways {
			packet.Seal(s.p, &ways[i].from, &ways[i].to, 0x1234)
			capture.Packet(at, s.p, &ways[i].from, &ways[i].to, 0x1234)
		}
	}
	require.NoError(t, capture.Close())
	names := []string{"_ws.malformed", "_ws.expert", "frame.time_epoch", "frame.protocols", "ip.src", "ip.dst", "ip.id",
		"ip.flags.df", "ip.checksum.status", "ipv6.src", "ipv6.dst", "udp.srcport", "udp.dstport",
		"udp.checksum.status", "infiniband.invariant.crc"}
	for _, s := range all {
		for k := range s.want {
			if k != "data.data" {
				k = "infiniband." + k
			}
			if !slices.Contains(names, k) {
				names = append(names, k)
			}
		}
	}
	name := filepath.Join(t.TempDir(), "all.pcap")
	require.NoError(t, os.WriteFile(name, file.Bytes(), 0o600))
	args := []string{"-r", name, "-n", "-o", "ip.check_checksum:TRUE", "-o", "udp.check_checksum:TRUE",
		"--disable-protocol", "rpcordma", "-T", "fields"} // it mistakes other payloads for its own
	for _, n := range names {
		args = append(args, "-e", n)
	}
	cmd := exec.Command(tshark, args...)
	var complaints bytes.Buffer
	cmd.Stderr = &complaints
	out, err := cmd.Output()
	require.NoError(t, err, "%s", &complaints)
	lines := strings.Split(strings.TrimSuffix(string(out), "\n"), "\n")
	require.Len(t, lines, len(all)*len(ways))
	for i, s := range all {
		for j, variant := range ways {
			got := dissection{}
			for k, v := range strings.Split(lines[i*len(ways)+j], "\t") {
				if v != "" {
					got[strings.TrimPrefix(names[k], "infiniband.")] = plain(v)
				}
			}
			want := dissection{"frame.time_epoch": "1700000000.123456789", "udp.srcport": "50000",
				"udp.dstport": "4791"}
			packet.Seal(s.p, &variant.from, &variant.to, 0x1234)
			if want["ip.src"] = variant.source; variant.name == "IPv4" {
				want["ip.dst"], want["ip.id"], want["ip.flags.df"] = variant.dest, n(0x1234), "1"
				want["ip.checksum.status"] = "1"  // good
				want["udp.checksum.status"] = "3" // none
			} else {
				delete(want, "ip.src")
				want["ipv6.src"], want["ipv6.dst"], want["udp.checksum.status"] = variant.source, variant.dest, "1"
			}
			if got["invariant.crc"] != "" { // missing for unknown opcodes
				want["invariant.crc"] = n(binary.BigEndian.Uint32(s.p[len(s.p)-4:]))
			}
			for k, v := range s.want {
				if !strings.HasPrefix(k, "cm.req.prim_") || !strings.HasSuffix(k, "gid") || variant.name == "IPv6" {
					want[k] = v // over IPv4, Wireshark prints GIDs as IPv4 addresses
				}
			}
			assert.Contains(t, got["frame.protocols"], "infiniband", "%s over %s", s.name, variant.name)
			delete(got, "frame.protocols")
			assert.Equal(t, want, got, "%s over %s", s.name, variant.name)
		}
	}
}

// plain normalizes a value: numbers in decimal, because releases of tshark differ, and only one copy of a field that
// occurs twice.
func plain(v string) string {
	if once, again, _ := strings.Cut(v, ","); once == again {
		v = once
	}
	switch v {
	case "True":
		return "1"
	case "False":
		return "0"
	}
	if number, err := strconv.ParseUint(v, 0, 64); err == nil && strings.HasPrefix(v, "0x") {
		return n(number)
	}
	return v
}
