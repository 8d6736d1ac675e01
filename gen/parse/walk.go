// SPDX-License-Identifier: BSD-2-Clause

package parse

import (
	"reflect"
	"strings"
	"sync"

	"modernc.org/cc/v4"
)

// walk visits the nodes of a syntax tree in preorder. It visits the children of a node only if visit returns true.
func walk(n cc.Node, visit func(cc.Node) bool) {
	v := reflect.ValueOf(n)
	if !v.IsValid() || v.Kind() != reflect.Pointer || v.IsNil() || !visit(n) {
		return
	}
	s := v.Elem()
	for _, i := range childFields(s.Type()) {
		if f := s.Field(i); !f.IsNil() {
			if child, ok := f.Interface().(cc.Node); ok {
				walk(child, visit)
			}
		}
	}
}

var children sync.Map // reflect.Type → []int, see childFields

// childFields returns the indexes of the struct fields that may hold child nodes.
func childFields(t reflect.Type) []int {
	if known, ok := children.Load(t); ok {
		return known.([]int)
	}
	var fields []int
	if t.Kind() == reflect.Struct {
		for i := range t.NumField() {
			if f := t.Field(i); f.IsExported() &&
				(f.Type.Kind() == reflect.Pointer || f.Type.Kind() == reflect.Interface) {
				fields = append(fields, i)
			}
		}
	}
	children.Store(t, fields)
	return fields
}

// text returns the C source of a node on one line, without spaces around -> . ( ) [ ].
func text(n cc.Node) string {
	var b strings.Builder
	last := ""
	for _, t := range cc.NodeTokens(n) {
		s := t.SrcStr()
		if last != "" && wordEnd(last) && wordStart(s) {
			b.WriteByte(' ')
		}
		b.WriteString(s)
		last = s
	}
	return b.String()
}

func wordEnd(s string) bool {
	c := s[len(s)-1]
	return c == '_' || c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
}

func wordStart(s string) bool { return s != "" && wordEnd(s[:1]) }
