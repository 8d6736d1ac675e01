// SPDX-License-Identifier: BSD-2-Clause

package model

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/big"
	"slices"
	"strconv"
)

// Int is a C integer constant in decimal. It can hold any int64 or uint64.
type Int string

// IntOf returns the Int of a signed value.
func IntOf(v int64) Int { return Int(strconv.FormatInt(v, 10)) }

// UintOf returns the Int of an unsigned value.
func UintOf(v uint64) Int { return Int(strconv.FormatUint(v, 10)) }

// Uint64 returns the two's complement bits of the value.
func (v Int) Uint64() uint64 {
	if u, err := strconv.ParseUint(string(v), 10, 64); err == nil {
		return u
	}
	i, _ := strconv.ParseInt(string(v), 10, 64)
	return uint64(i)
}

// fits reports whether an integer of size bytes can hold the value.
func (v Int) fits(size int64, signed bool) bool {
	n, ok := new(big.Int).SetString(string(v), 10)
	if !ok {
		return false
	}
	high := new(big.Int).Lsh(big.NewInt(1), uint(8*size))
	if !signed {
		return n.Sign() >= 0 && n.Cmp(high) < 0
	}
	high.Rsh(high, 1)
	return n.Cmp(high) < 0 && n.Cmp(new(big.Int).Neg(high)) >= 0
}

// Negative reports whether the value is below zero.
func (v Int) Negative() bool { return len(v) > 0 && v[0] == '-' }

// MarshalJSON returns a JSON number.
func (v Int) MarshalJSON() ([]byte, error) { return []byte(v), nil }

// UnmarshalJSON parses a JSON number that fits in an int64 or uint64.
func (v *Int) UnmarshalJSON(b []byte) error {
	s := string(b)
	if _, err := strconv.ParseUint(s, 10, 64); err != nil {
		if _, err := strconv.ParseInt(s, 10, 64); err != nil {
			return fmt.Errorf("%.40q is not an integer of 64 bits", s)
		}
	}
	*v = Int(s)
	return nil
}

// Per is a number of bytes that can differ between targets: a default, and the targets with other values.
type Per struct {
	Default int64
	Only    map[string]int64 // by GOARCH; never holds a value equal to Default
}

// Same returns a Per with the same value for all targets.
func Same(v int64) Per { return Per{Default: v} }

// On returns the value for a target.
func (p Per) On(target string) int64 {
	if v, ok := p.Only[target]; ok {
		return v
	}
	return p.Default
}

// Set sets the value for a target.
func (p *Per) Set(target string, v int64) {
	if v == p.Default {
		delete(p.Only, target)
		return
	}
	if p.Only == nil {
		p.Only = map[string]int64{}
	}
	p.Only[target] = v
}

// Equal reports whether p and q are equal on every target.
func (p Per) Equal(q Per) bool { return p.Default == q.Default && maps.Equal(p.Only, q.Only) }

// String returns "120" or "120 (arm64: 128)".
func (p Per) String() string {
	s := strconv.FormatInt(p.Default, 10)
	for i, t := range slices.Sorted(maps.Keys(p.Only)) {
		if i == 0 {
			s += " ("
		} else {
			s += ", "
		}
		s += t + ": " + strconv.FormatInt(p.Only[t], 10)
	}
	if len(p.Only) > 0 {
		s += ")"
	}
	return s
}

// MarshalJSON returns a number such as 120, or, if targets differ, an object such as {"default":120,"arm64":128}.
func (p Per) MarshalJSON() ([]byte, error) {
	if len(p.Only) == 0 {
		return strconv.AppendInt(nil, p.Default, 10), nil
	}
	b := fmt.Appendf(nil, `{"default":%d`, p.Default)
	for _, t := range slices.Sorted(maps.Keys(p.Only)) {
		b = fmt.Appendf(b, `,%q:%d`, t, p.Only[t])
	}
	return append(b, '}'), nil
}

// UnmarshalJSON parses the output of MarshalJSON.
func (p *Per) UnmarshalJSON(b []byte) error {
	*p = Per{}
	if len(b) > 0 && b[0] != '{' {
		return json.Unmarshal(b, &p.Default)
	}
	var m map[string]int64
	if err := json.Unmarshal(b, &m); err != nil {
		return err
	}
	v, ok := m["default"]
	if !ok {
		return fmt.Errorf(`%.80s has no "default"`, b)
	}
	p.Default = v
	for t, n := range m {
		if t != "default" {
			p.Set(t, n)
		}
	}
	return nil
}
