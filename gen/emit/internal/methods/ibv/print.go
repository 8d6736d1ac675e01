// SPDX-License-Identifier: BSD-2-Clause

//go:build ignore

package ibv

// String returns, for example, "64 bytes at 0x7f0000001000, lkey 0x1234".
func (p SGE) String() string {
	s := append(appendInteger(nil, p.Length), " bytes at "...)
	s = append(append(s, hex(p.Addr)...), ", lkey "...)
	return string(append(s, hex(p.LKey)...))
}

// String lists the members under their C names: "max_send_wr 64, max_recv_wr 64, max_send_sge 1, max_recv_sge 1,
// max_inline_data 0".
func (p QPCap) String() string {
	s := appendInteger([]byte("max_send_wr "), p.MaxSendWR)
	s = appendInteger(append(s, ", max_recv_wr "...), p.MaxRecvWR)
	s = appendInteger(append(s, ", max_send_sge "...), p.MaxSendSGE)
	s = appendInteger(append(s, ", max_recv_sge "...), p.MaxRecvSGE)
	return string(appendInteger(append(s, ", max_inline_data "...), p.MaxInlineData))
}

// String returns, for example, "GID fe80::2:c903:a1:b2c3 (port 1, index 0, IBV_GID_TYPE_ROCE_V2, interface 2)". The
// interface is the index of the network interface; 0 is omitted.
func (p GIDEntry) String() string {
	s := append(append([]byte("GID "), p.GID.String()...), " (port "...)
	s = appendInteger(append(appendInteger(s, p.PortNum), ", index "...), p.GIDIndex)
	s = append(append(s, ", "...), p.GIDType.String()...)
	if p.NDevIfindex != 0 {
		s = appendInteger(append(s, ", interface "...), p.NDevIfindex)
	}
	return string(append(s, ')'))
}
