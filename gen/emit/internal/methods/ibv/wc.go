// SPDX-License-Identifier: BSD-2-Clause

//go:build ignore

package ibv

// String describes the completion by its valid fields: "QP 0x11: WR id 0x2a: IBV_WC_RECV, 64 bytes". For a failed one
// it returns "QP 0x11: WR id 0x2a: IBV_WC_RETRY_EXC_ERR (status 12)" and the meaning of the status. WCStatusMeaning
// also lists likely causes.
func (p WC) String() string {
	s := append([]byte("QP "), hex(p.QPNum)...)
	s = append(append(s, ": WR id "...), hex(p.WRID)...)
	s = append(s, ": "...)
	if p.Status != WC_SUCCESS {
		s = append(append(s, p.Status.String()...), " (status "...)
		s = append(appendInteger(s, uint32(p.Status)), ')')
		if meaning := WCStatusMeaning(p.Status).Meaning; meaning != "" {
			s = append(append(s, ": "...), meaning...)
		}
		if p.VendorErr != 0 {
			s = append(append(s, ", vendor error "...), hex(p.VendorErr)...)
		}
		return string(s)
	}
	s = append(s, p.Opcode.String()...)
	if p.hasByteLen() {
		s = append(appendInteger(append(s, ", "...), p.ByteLen), " bytes"...)
	}
	if p.SrcQP != 0 {
		s = append(append(s, ", from QP "...), hex(p.SrcQP)...)
	}
	switch {
	case p.WCFlags&WC_WITH_IMM != 0:
		s = append(append(s, ", immediate data "...), hex(p.ImmData().Host())...)
	case p.WCFlags&WC_WITH_INV != 0:
		s = append(append(s, ", invalidated key "...), hex(*p.InvalidatedRKey())...)
	}
	if p.WCFlags != 0 {
		s = append(append(s, ", "...), p.WCFlags.String()...)
	}
	return string(s)
}

// hex formats a number in hex.
func hex[T integer](v T) []byte { return appendNumber([]byte("0x"), uint64(v), 16) }

// MarshalJSON returns an object with the valid fields under their C names. Fields that only some completions have are
// omitted if they are 0. Immediate data is in host byte order.
func (p WC) MarshalJSON() ([]byte, error) {
	s := appendInteger([]byte(`{"wr_id":`), p.WRID)
	s = append(append(s, `,"status":`...), enumJSON(p.Status, namesOfWCStatus[:])...)
	add := func(name string, value uint32, there bool) {
		if there {
			s = appendInteger(append(append(append(s, `,"`...), name...), `":`...), value)
		}
	}
	add("qp_num", p.QPNum, true)
	if p.Status != WC_SUCCESS {
		add("vendor_err", p.VendorErr, true)
		return append(s, '}'), nil
	}
	s = append(append(s, `,"opcode":`...), enumJSON(p.Opcode, namesOfWCOpcode[:])...)
	add("byte_len", p.ByteLen, p.hasByteLen())
	if p.WCFlags != 0 {
		s = append(append(s, `,"wc_flags":`...), quoted(p.WCFlags.String())...)
	}
	add("imm_data", p.ImmData().Host(), p.WCFlags&WC_WITH_IMM != 0)
	add("invalidated_rkey", *p.InvalidatedRKey(), p.WCFlags&(WC_WITH_IMM|WC_WITH_INV) == WC_WITH_INV)
	add("src_qp", p.SrcQP, p.SrcQP != 0)
	add("pkey_index", uint32(p.PKeyIndex), p.PKeyIndex != 0)
	add("slid", uint32(p.SLID), p.SLID != 0)
	add("sl", uint32(p.SL), p.SL != 0)
	add("dlid_path_bits", uint32(p.DLIDPathBits), p.DLIDPathBits != 0)
	return append(s, '}'), nil
}

// hasByteLen reports whether a successful completion has a valid length, whatever the type of its queue pair.
func (p WC) hasByteLen() bool {
	kind := WCKindOf(p.Opcode, QPT_RC)
	return kind.Answer == AnswerUnspecified || WCFieldValidity(WCFieldByteLen, kind.Kind).Answer != AnswerNo
}

// UnmarshalJSON parses the output of MarshalJSON. Missing members become 0, and unknown members are ignored.
func (p *WC) UnmarshalJSON(json []byte) error {
	if trim(string(json)) == "null" {
		return nil
	}
	var v WC
	err := members(string(json), func(name, value string) error {
		switch name {
		case "wr_id":
			return readNumber(&v.WRID, name, value)
		case "status":
			return v.Status.UnmarshalJSON([]byte(value))
		case "qp_num":
			return readNumber(&v.QPNum, name, value)
		case "vendor_err":
			return readNumber(&v.VendorErr, name, value)
		case "opcode":
			return v.Opcode.UnmarshalJSON([]byte(value))
		case "byte_len":
			return readNumber(&v.ByteLen, name, value)
		case "wc_flags":
			return v.WCFlags.UnmarshalJSON([]byte(value))
		case "imm_data":
			return v.ImmData().UnmarshalJSON([]byte(value))
		case "invalidated_rkey":
			return readNumber(v.InvalidatedRKey(), name, value)
		case "src_qp":
			return readNumber(&v.SrcQP, name, value)
		case "pkey_index":
			return readNumber(&v.PKeyIndex, name, value)
		case "slid":
			return readNumber(&v.SLID, name, value)
		case "sl":
			return readNumber(&v.SL, name, value)
		case "dlid_path_bits":
			return readNumber(&v.DLIDPathBits, name, value)
		}
		return nil
	})
	if err == nil {
		*p = v
	}
	return err
}

// readNumber parses the value of a member.
func readNumber[T integer](to *T, name, value string) error {
	n, ok := parseInteger[T](value)
	if !ok {
		return &textError{value, "a value of " + name, "write a number that fits the field"}
	}
	*to = n
	return nil
}

// members calls each for every member of a JSON object, until an error occurs. String values keep their quotes. Using
// encoding/json would add much of the standard library to the build.
func members(json string, each func(name, value string) error) error {
	broken := &textError{json, "a completion", "write a JSON object"}
	s := trim(json)
	if len(s) < 2 || s[0] != '{' || s[len(s)-1] != '}' {
		return broken
	}
	for s = trim(s[1 : len(s)-1]); s != ""; {
		name := s[:jsonEnd(s)]
		s = trim(s[len(name):])
		if name = trim(name); len(name) < 2 || name[0] != '"' || s == "" || s[0] != ':' {
			return broken
		}
		s = trim(s[1:])
		value := s[:jsonEnd(s)]
		s = s[len(value):]
		if value = trim(value); value == "" {
			return broken
		}
		if err := each(name[1:len(name)-1], value); err != nil {
			return err
		}
		if s != "" {
			if s = trim(s[1:]); s == "" { // the comma must be followed by a member
				return broken
			}
		}
	}
	return nil
}

// jsonEnd returns the index after the first JSON value of s.
func jsonEnd(s string) int {
	depth, quoted := 0, false
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '{' || c == '[':
			depth++
		case c == '}' || c == ']':
			depth--
		case depth == 0 && (c == ',' || c == ':'):
			return i
		}
	}
	return len(s)
}
