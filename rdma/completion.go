// SPDX-License-Identifier: BSD-2-Clause

package rdma

import (
	"encoding/json"
	"fmt"
	"strings"
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/internal/refusal"
	"github.com/goverbs/goverbs/rdma/internal/verberr"
)

// String formats the completion like ibv.WC: "QP 0x11: WR id 0x2a: IBV_WC_RECV, 64 bytes". It omits fields that were
// not requested or are 0.
func (c Completion) String() string {
	if c.Status != ibv.WC_SUCCESS {
		wc := ibv.WC{WRID: c.WRID, Status: c.Status, VendorErr: c.VendorErr, QPNum: c.QPNum}
		return strings.TrimPrefix(wc.String(), "QP 0x0: ")
	}
	var s strings.Builder
	add := func(format string, value any, present bool) {
		if present {
			fmt.Fprintf(&s, format, value)
		}
	}
	add("QP %#x: ", c.QPNum, c.QPNum != 0)
	add("WR id %#x: ", c.WRID, true)
	add("%v", c.Opcode, true)
	add(", %d bytes", c.ByteLen, c.ByteLen != 0)
	add(", from QP %#x", c.SrcQP, c.SrcQP != 0)
	add(", immediate data %#x", c.Imm.Host(), c.Imm != 0 && c.Flags&ibv.WC_WITH_IMM != 0)
	add(", invalidated key %#x", uint32(c.Imm),
		c.Imm != 0 && c.Flags&(ibv.WC_WITH_IMM|ibv.WC_WITH_INV) == ibv.WC_WITH_INV)
	add(", VLAN %d", c.CVLAN, c.CVLAN != 0)
	add(", flow tag %#x", c.FlowTag, c.FlowTag != 0)
	add(", tag %#x", c.TM.Tag, c.TM != ibv.WCTMInfo{})
	add(", %v", c.Flags, c.Flags != 0)
	return s.String()
}

// String describes the batch: "batch of 2 sends, with room for 4".
func (b *SendBatch) String() string { return b.text("sends") }

// String describes the batch: "batch of 2 receives, with room for 4".
func (b *RecvBatch) String() string { return b.text("receives") }

// String describes the batch: "batch of 2 operations, with room for 4".
func (b *TagBatch) String() string { return b.text("operations") }

func (b *batch) text(kind string) string {
	if b.closed {
		return "batch of " + kind + ", closed"
	}
	return fmt.Sprintf("batch of %d %s, with room for %d", b.Len(), kind, b.Cap())
}

// String describes the program: "program of QP 0x11 (RC) with 2 work requests".
func (p *WRProgram) String() string {
	if p.qp == nil {
		return "program that was never created"
	}
	return fmt.Sprintf("program of QP %#x (%s) with %d work requests", p.qp.QPBase.QPNum,
		refusal.ShortName(p.qp.QPBase.QPType), p.Len())
}

// String describes the program: "program that polls up to 32 completions".
func (p *PollProgram) String() string {
	return fmt.Sprintf("program that polls up to %d completions", len(p.all))
}

// completionJSON is a completion in JSON.
type completionJSON struct {
	WRID        uint64        `json:"wr_id"`
	Status      ibv.WCStatus  `json:"status"`
	QPNum       uint32        `json:"qp_num,omitempty"`
	VendorErr   *uint32       `json:"vendor_err,omitempty"`
	Opcode      *ibv.WCOpcode `json:"opcode,omitempty"`
	ByteLen     uint32        `json:"byte_len,omitempty"`
	Flags       ibv.WCFlags   `json:"wc_flags,omitempty"`
	Imm         ibv.BE32      `json:"imm_data,omitempty"`
	Invalidated uint32        `json:"invalidated_rkey,omitempty"`
	SrcQP       uint32        `json:"src_qp,omitempty"`
	SLID        uint32        `json:"slid,omitempty"`
	SL          uint8         `json:"sl,omitempty"`
	PathBits    uint8         `json:"dlid_path_bits,omitempty"`
	CVLAN       uint16        `json:"cvlan,omitempty"`
	FlowTag     uint32        `json:"flow_tag,omitempty"`
	Timestamp   uint64        `json:"completion_ts,omitempty"`
	Wallclock   uint64        `json:"completion_wallclock_ns,omitempty"`
	TM          struct {
		Tag  uint64 `json:"tag"`
		Priv uint32 `json:"priv"`
	} `json:"tm_info,omitzero"`
}

// MarshalJSON returns a JSON object like that of ibv.WC. It omits fields that were not requested or are 0.
func (c Completion) MarshalJSON() ([]byte, error) {
	out := completionJSON{WRID: c.WRID, Status: c.Status, QPNum: c.QPNum}
	if c.Status != ibv.WC_SUCCESS {
		out.VendorErr = &c.VendorErr
		return json.Marshal(out)
	}
	out.Opcode, out.ByteLen, out.Flags, out.SrcQP, out.SLID = &c.Opcode, c.ByteLen, c.Flags, c.SrcQP, c.SLID
	out.SL, out.PathBits, out.CVLAN, out.FlowTag = c.SL, c.PathBits, c.CVLAN, c.FlowTag
	out.Timestamp, out.Wallclock, out.TM.Tag, out.TM.Priv = c.Timestamp, c.Wallclock, c.TM.Tag, c.TM.Priv
	switch {
	case c.Flags&ibv.WC_WITH_IMM != 0:
		out.Imm = c.Imm
	case c.Flags&ibv.WC_WITH_INV != 0:
		out.Invalidated = uint32(c.Imm)
	}
	return json.Marshal(out)
}

// UnmarshalJSON parses the output of MarshalJSON. Missing members become 0.
func (c *Completion) UnmarshalJSON(text []byte) error {
	var out Completion
	in := completionJSON{VendorErr: &out.VendorErr, Opcode: &out.Opcode}
	if err := json.Unmarshal(text, &in); err != nil {
		return err
	}
	*c = Completion{WRID: in.WRID, Status: in.Status, VendorErr: out.VendorErr, Opcode: out.Opcode, QPNum: in.QPNum,
		ByteLen: in.ByteLen, Flags: in.Flags, Imm: in.Imm | ibv.BE32(in.Invalidated), SrcQP: in.SrcQP, SLID: in.SLID,
		SL: in.SL, PathBits: in.PathBits, CVLAN: in.CVLAN, FlowTag: in.FlowTag, Timestamp: in.Timestamp,
		Wallclock: in.Wallclock, TM: ibv.WCTMInfo{Tag: in.TM.Tag, Priv: in.TM.Priv}}
	return nil
}

// GRHBytes is the size of the global routing header, which precedes the message in the memory of a UD receive.
const GRHBytes = int(unsafe.Sizeof(ibv.GRH{}))

// Datagram splits the memory of a completed UD receive into header and message. buffer is the posted memory, which must
// be contiguous, and wc the completion. payload is the part of buffer that contains the message. grh is the header in
// front of it, or nil if the completion lacks WC_GRH. Between IPv4 addresses, RoCE v2 stores the IPv4 header in the
// last 20 of the 40 bytes, and the fields of grh are undefined. Neither result is a copy.
//
// Man: ibv_poll_cq(3)
func Datagram(wc *ibv.WC, buffer []byte) (payload []byte, grh *ibv.GRH, err error) {
	if wc.Status != ibv.WC_SUCCESS {
		return nil, nil, CompletionErr(wc)
	}
	if int(wc.ByteLen) > len(buffer) || int(wc.ByteLen) < GRHBytes {
		return nil, nil,
			verberr.Invalid("ibv_poll_cq", "", "byte_len is %d; with the header it must be from %d to the buffer's %d",
				wc.ByteLen, GRHBytes, len(buffer))
	}
	if wc.WCFlags&ibv.WC_GRH != 0 {
		grh = (*ibv.GRH)(unsafe.Pointer(unsafe.SliceData(buffer)))
	}
	return buffer[GRHBytes:wc.ByteLen], grh, nil
}
