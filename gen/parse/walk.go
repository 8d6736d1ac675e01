package parse

import (
	"reflect"
	"strings"

	"modernc.org/cc/v4"
)

// walk visits the nodes of a syntax tree, a parent before its children, and children only where visit returns true.
func walk(n cc.Node, visit func(cc.Node) bool) {
	v := reflect.ValueOf(n)
	if !v.IsValid() || v.Kind() != reflect.Pointer || v.IsNil() || !visit(n) {
		return
	}
	s := v.Elem()
	if s.Kind() != reflect.Struct {
		return
	}
	for i := range s.NumField() {
		f := s.Field(i)
		if !s.Type().Field(i).IsExported() || (f.Kind() != reflect.Pointer && f.Kind() != reflect.Interface) || f.IsNil() {
			continue
		}
		if child, ok := f.Interface().(cc.Node); ok {
			walk(child, visit)
		}
	}
}

// text is the C source of a node on one line, with single spaces and none around -> . ( ) [ ].
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
