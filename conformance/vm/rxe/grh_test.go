// SPDX-License-Identifier: BSD-2-Clause

package rxe

import (
	"bytes"
	"encoding/binary"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"testing"

	"github.com/goverbs/goverbs/conformance/vm/results"
	"github.com/goverbs/goverbs/conformance/vm/testbed"
	"github.com/goverbs/goverbs/generated/ibv"
	verbs "github.com/goverbs/goverbs/generated/libibverbs"
)

// headerCases lists datagrams whose headers are compared. Lengths that are not multiples of 4 are padded on the wire.
var headerCases = []struct {
	name   string
	opcode ibv.WROpcode
	length int
	route  func(*ibv.GlobalRoute)
}{
	{"no data", ibv.WR_SEND, 0, nil},
	{"1 byte", ibv.WR_SEND, 1, nil},
	{"36 bytes", ibv.WR_SEND, 36, nil},
	{"64 bytes", ibv.WR_SEND, 64, nil},
	{"1022 bytes", ibv.WR_SEND, 1022, nil},
	{"1023 bytes and immediate data", ibv.WR_SEND_WITH_IMM, 1023, nil},
	{"64 bytes, hop limit 64", ibv.WR_SEND, 64, func(g *ibv.GlobalRoute) { g.HopLimit = 64 }},
	{"64 bytes, hop limit 255", ibv.WR_SEND, 64, func(g *ibv.GlobalRoute) { g.HopLimit = 255 }},
	{"64 bytes, hop limit 0", ibv.WR_SEND, 64, func(g *ibv.GlobalRoute) { g.HopLimit = 0 }},
	{"64 bytes, traffic class 0x28", ibv.WR_SEND, 64, func(g *ibv.GlobalRoute) { g.TrafficClass = 0x28 }},
	{"64 bytes, traffic class 0xff", ibv.WR_SEND, 64, func(g *ibv.GlobalRoute) { g.TrafficClass = 0xff }},
	{"64 bytes, flow label 0x12345", ibv.WR_SEND, 64, func(g *ibv.GlobalRoute) { g.FlowLabel = 0x12345 }},
	{"64 bytes to a group, hop limit 1", ibv.WR_SEND, 64, toGroup},
	{"64 bytes to a group, hop limit 7", ibv.WR_SEND, 64, func(g *ibv.GlobalRoute) { toGroup(g); g.HopLimit = 7 }},
}

func toGroup(g *ibv.GlobalRoute) {
	raw := g.DGID.Raw()
	if netip.AddrFrom16(*raw).Is4In6() {
		*raw = [16]byte{10: 0xff, 11: 0xff, 12: 239, 13: 1, 14: 1, 15: 1}
	} else {
		*raw = [16]byte{0: 0xff, 1: 0x02, 14: 0x77, 15: 0x77}
	}
}

// TestDatagramHeader measures the header before a datagram's data, field by field.
func TestDatagramHeader(t *testing.T) {
	r := testbed.Open(t)
	table := results.Table{Columns: []string{"family", "case", "before", "version", "class", "flow", "length",
		"identification", "fragment", "hops", "next", "checksum", "addresses"}, Keys: 2}
	for _, family := range []string{"IPv4", "IPv6"} {
		for _, c := range headerCases {
			t.Run(family+"/"+c.name, func(t *testing.T) {
				sub := r.For(t)
				attr := sub.AH()
				if family == "IPv6" {
					attr.GRH.DGID, attr.GRH.SGIDIndex = linkLocal(sub)
				}
				from := attr.GRH.DGID
				if c.route != nil {
					c.route(&attr.GRH)
				}
				header := receivedHeader(t, sub, &attr, c.opcode, c.length)
				table.Rows = append(table.Rows, append([]string{family, c.name}, fields(family, header,
					*from.Raw(), *attr.GRH.DGID.Raw())...))
			})
		}
	}
	check(t, "grh", table)
}

// linkLocal finds the device's RoCE v2 GID that is an IPv6 address.
func linkLocal(r *testbed.Testbed) (gid ibv.GID, index uint8) {
	entries := make([]ibv.GIDEntry, 64)
	n, err := verbs.QueryGIDTable(r.Context, &entries[0], uint64(len(entries)), 0)
	r.Check(err)
	i := slices.IndexFunc(entries[:n], func(e ibv.GIDEntry) bool {
		return e.GIDType == ibv.GID_TYPE_ROCE_V2 && netip.AddrFrom16(*e.GID.Raw()).IsLinkLocalUnicast() &&
			!netip.AddrFrom16(*e.GID.Raw()).Is4In6()
	})
	if i < 0 {
		r.Check(failed("no link-local GID of RoCE v2"))
	}
	return entries[i].GID, uint8(entries[i].GIDIndex)
}

// receivedHeader sends a datagram along a path to the device itself, and returns the bytes that precede its data.
func receivedHeader(t *testing.T, r *testbed.Testbed, attr *ibv.AHAttr, op ibv.WROpcode, length int) []byte {
	p := r.Pair(ibv.QPT_UD)
	ah, err := verbs.CreateAH(r.PD, attr)
	r.Check(err)
	r.Defer(func() { r.Check(verbs.DestroyAH(ah)) })
	number := p.B.QPNum
	if group := &attr.GRH.DGID; group.Raw()[0] == 0xff || group.Raw()[12] == 239 {
		number = groupNumber
		join(t, net.IP(group.Raw()[:]))
		r.Check(verbs.AttachMcast(p.B, group, 0))
		r.Defer(func() { r.Check(verbs.DetachMcast(p.B, group, 0)) })
	}
	from, to := r.Buffer(2048, local), r.Buffer(2048, local)
	for i := range to.Bytes {
		to.Bytes[i] = 0xee
	}
	r.Recv(p.B, 7, to.SGE(0, 2048))
	l := r.Sends(1)
	l.WRs[0].Opcode, l.WRs[0].SendFlags, l.SGEs[0] = op, ibv.SEND_SIGNALED, from.SGE(0, length)
	if length == 0 {
		l.WRs[0].NumSGE = 0
	}
	*l.WRs[0].WR.UD() = ibv.SendUD{AH: ibv.PtrTo(ah), RemoteQPN: number, RemoteQKey: testbed.QKey}
	_, err = l.Post(p.A)
	r.Check(err)
	r.Check(status(r.Completion(p.ASend)))
	wc := r.Completion(p.BRecv)
	r.Check(status(wc))
	if int(wc.ByteLen) != grh+length {
		r.Check(failed("wrong length"))
	}
	return to.Bytes[:grh]
}

// fields returns the columns of a header, from "before" on.
func fields(family string, h []byte, from, to [16]byte) []string {
	hex := func(v uint64) string { return "0x" + strconv.FormatUint(v, 16) }
	number := func(v uint64) string { return strconv.FormatUint(v, 10) }
	addresses := func(srcDst []byte, skip int) string {
		if bytes.Equal(srcDst, slices.Concat(from[skip:], to[skip:])) {
			return "right"
		}
		return "wrong"
	}
	if family == "IPv6" {
		first := uint64(binary.BigEndian.Uint32(h))
		return []string{"-", number(first >> 28), hex(first >> 20 & 0xff), hex(first & 0xfffff),
			number(uint64(binary.BigEndian.Uint16(h[4:]))), "-", "-", number(uint64(h[7])), number(uint64(h[6])), "-",
			addresses(h[8:40], 0)}
	}
	before, identification, sum := "zeros", "0", "right"
	if !bytes.Equal(h[:20], make([]byte, 20)) {
		before = "not zeros"
	}
	ip := h[20:]
	if binary.BigEndian.Uint16(ip[4:]) != 0 {
		identification = "some"
	}
	if total := ones(ip); binary.BigEndian.Uint16(ip[10:]) == 0 {
		sum = "0"
	} else if total != 0xffff {
		sum = "wrong"
	}
	return []string{before, hex(uint64(ip[0])), hex(uint64(ip[1])), "-",
		number(uint64(binary.BigEndian.Uint16(ip[2:]))),
		identification, hex(uint64(binary.BigEndian.Uint16(ip[6:]))), number(uint64(ip[8])), number(uint64(ip[9])), sum,
		addresses(ip[12:20], 12)}
}

// ones returns the ones' complement sum of a header, which is 0xffff if its checksum is correct.
func ones(b []byte) (sum uint32) {
	for ; len(b) > 1; b = b[2:] {
		sum += uint32(binary.BigEndian.Uint16(b))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return sum
}
