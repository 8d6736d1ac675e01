// SPDX-License-Identifier: BSD-2-Clause

package emit

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	"github.com/goverbs/goverbs/gen/model"
	"github.com/goverbs/goverbs/gen/rules"
)

// Dropins prints the C source and the linker version script of each drop-in library.
func Dropins(libraries []*rules.Dropin, slots *rules.DropinSlots) (Files, error) {
	out := Files{}
	for _, l := range libraries {
		c, err := dropinC(l)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", l.SOName, err)
		}
		out[l.Library+".c"] = c
		out[l.Library+".map"] = dropinMap(l)
	}
	out["slots.h"] = dropinSlots(slots)
	return out, nil
}

// dropinSlots prints the offsets of the functions of a context that return pointers.
func dropinSlots(s *rules.DropinSlots) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, generated+"\n\n", s.Source)
	b.WriteString("// Offset of the context in the structure that embeds it, and offsets of the functions that " +
		"return a pointer.\n")
	fmt.Fprintf(&b, "#define CONTEXT_AT %d\n", s.Context)
	b.WriteString("static const unsigned short pointer_slots[] = {")
	for i, at := range s.Pointers {
		if i%12 == 0 {
			b.WriteString("\n\t")
		} else {
			b.WriteString(" ")
		}
		fmt.Fprintf(&b, "%d,", at)
	}
	b.WriteString("\n};\n")
	return b.Bytes()
}

// failures maps a convention to its macro in dropin/library/call.h.
var failures = map[rules.Convention]string{
	rules.ReturnsVoid: "FAILS_NEVER", rules.ReturnsValue: "FAILS_NEVER", rules.ReturnsBool: "FAILS_NEVER",
	rules.ReturnsErrno: "FAILS_ERRNO", rules.ReturnsCode: "FAILS_ERRNO", rules.ReturnsSpecial: "FAILS_ERRNO",
	rules.ReturnsMinusOne: "FAILS_MINUS_ONE", rules.ReturnsStatus: "FAILS_MINUS_ONE",
	rules.ReturnsNegativeErrno: "FAILS_NEGATIVE",
	rules.ReturnsNull:          "FAILS_NULL", rules.ReturnsNullOK: "FAILS_NULL",
}

func dropinC(l *rules.Dropin) ([]byte, error) {
	var functions, code, versions bytes.Buffer
	n, written := 0, false
	for _, s := range l.Symbols {
		// if there are several versions, the symbol itself gets an internal name
		name := s.Name
		switch {
		case s.Written:
			name, written = "written_"+s.Name, true
		case len(s.Also)+len(s.Old) > 0:
			name = "new_" + s.Name
		}
		switch {
		case s.Written, s.Default == "":
		case s.Object > 0:
			fmt.Fprintf(&code, "\nchar %s[%d];\n", name, s.Object)
		case s.Func == nil:
			fmt.Fprintf(&code, "\nREFUSED(%s, \"%s\")\n", name, s.Name)
		default:
			text, err := dropinFunc(s, name, n)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", s.Name, err)
			}
			code.WriteString(text)
			fmt.Fprintf(&functions, "\t{\"%s\", \"%s\", %s, 0},\n", l.Library, s.Name, failures[s.Fails])
			n++
		}
		if name != s.Name && s.Default != "" {
			fmt.Fprintf(&versions, "SYMBOL_VERSION(%s, %s, \"@@%s\");\n", name, s.Name, s.Default)
		}
		for _, v := range s.Also {
			fmt.Fprintf(&versions, "SYMBOL_VERSION(%s, %s, \"@%s\");\n", name, s.Name, v)
		}
		if len(s.Old) > 0 { // their callers expect another structure layout
			fmt.Fprintf(&code, "\nREFUSED(old_%s, \"%[1]s of old programs\")\n", s.Name)
		}
		for _, v := range s.Old {
			fmt.Fprintf(&versions, "SYMBOL_VERSION(old_%s, %[1]s, \"@%s\");\n", s.Name, v)
		}
	}
	if written {
		fmt.Fprintf(&code, "\n#include \"%s.h\"\n", l.Library)
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, generated+"\n\n#include \"call.h\"\n\n", l.Source)
	fmt.Fprintf(&b, "static struct goverbs_function functions[] = {\n%s};\n%s", functions.Bytes(), code.Bytes())
	if versions.Len() > 0 {
		fmt.Fprintf(&b, "\n%s", versions.Bytes())
	}
	return b.Bytes(), nil
}

// dropinFunc returns the definition of a function that calls the engine.
func dropinFunc(s rules.DropinSymbol, name string, n int) (string, error) {
	var params, args []string
	for i, p := range s.Func.Params {
		name := fmt.Sprintf("a%d", i)
		t := model.Type{Base: "void", Pointers: 1}
		if p.Func == nil {
			var err error
			if t, err = model.ParseType(p.Type); err != nil {
				return "", err
			}
		}
		c, cast, err := dropinType(t)
		if err != nil {
			return "", err
		}
		params = append(params, strings.TrimSuffix(c+" ", "* ")+strings.TrimPrefix(c, strings.TrimSuffix(c, "*"))+name)
		args = append(args, cast+name)
	}
	result, err := model.ParseType(s.Func.Result)
	if err != nil {
		return "", err
	}
	c, _, err := dropinType(result)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	before := ""
	if s.Func.Variadic { // at most one variable argument, an integer or a pointer
		last := params[len(params)-1]
		before = fmt.Sprintf("\tva_list more;\n\tlong a%d;\n\n\tva_start(more, %s);\n\ta%[1]d = va_arg(more, long);\n"+
			"\tva_end(more);\n", len(params), last[strings.LastIndexAny(last, " *")+1:])
		args = append(args, fmt.Sprintf("a%d", len(params)))
		params = append(params, "...")
	}
	list := "NULL"
	if len(args) > 0 {
		list = "(uint64_t[]){" + strings.Join(args, ", ") + "}"
	}
	if len(params) == 0 {
		params = []string{"void"}
	}
	space := " "
	if strings.HasSuffix(c, "*") {
		space = ""
	}
	call := fmt.Sprintf("goverbs_enter(&functions[%d], %s, %d)", n, list, len(args))
	switch {
	case result.IsVoid():
	case result.Pointers > 0:
		call = "return (void *)(uintptr_t)" + call
	default:
		call = "return (" + c + ")" + call
	}
	fmt.Fprintf(&b, "\n%s%s%s(%s)\n{\n%s\t%s;\n}\n", c, space, name, strings.Join(params, ", "), before, call)
	return b.String(), nil
}

// dropinType returns a C type of the same width that needs no header of the library, and the cast of an argument to it.
func dropinType(t model.Type) (c, cast string, err error) {
	kind, _ := t.Tag()
	switch {
	case t.Pointers > 0 || len(t.Dims) > 0:
		return "void *", "(uintptr_t)", nil
	case kind == "enum":
		return "int", "", nil
	case kind != "":
		return "", "", fmt.Errorf("%s is passed by value", t)
	}
	if width, ok := strings.CutPrefix(t.Base, "__be"); ok {
		return "uint" + width + "_t", "", nil
	}
	return t.Base, "", nil
}

func dropinMap(l *rules.Dropin) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "/* Code generated by goverbs from the recorded model of %s; DO NOT EDIT.\n"+
		"   SPDX-License-Identifier: BSD-2-Clause */\n", l.Source)
	for i, v := range l.Versions {
		fmt.Fprintf(&b, "%s {\n\tglobal:\n", v.Name)
		for _, s := range l.Symbols {
			if s.Default == v.Name || slices.Contains(s.Also, v.Name) || slices.Contains(s.Old, v.Name) {
				fmt.Fprintf(&b, "\t\t%s;\n", s.Name)
			}
		}
		if i == 0 {
			b.WriteString("\tlocal:\n\t\t*;\n")
		}
		fmt.Fprintf(&b, "%s;\n", strings.Join(append([]string{"}"}, v.After...), " "))
	}
	if l.Base {
		b.WriteString("GOVERBS_PRIVATE {\n\tglobal:\n\t\tgoverbs_enter;\n\t\tgoverbs_refuse;\n};\n")
	}
	return b.Bytes()
}
