// SPDX-License-Identifier: BSD-2-Clause

package freebsd

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/gen/model"
	"github.com/goverbs/goverbs/internal/verbsabi"
)

// TestClangLayout: clang, for each target, gives the recorded sizes, alignments and offsets to the structures and unions
// of the model, declared in C again from their members. Unlike TestClangAgrees, it does not need FreeBSD's headers, and
// cannot find a member that the model lacks.
func TestClangLayout(t *testing.T) {
	t.Parallel()
	r := *primary(t)
	dir := t.TempDir()
	var types []model.Header
	includes := "#pragma once\n#include <infiniband/types.h>\n#include <netinet/in.h>\n#include <pthread.h>\n"
	for _, h := range r.Headers {
		h.Macros, h.Funcs, h.FuncTypes = nil, nil, nil
		types = append(types, h)
		if h.Support {
			continue
		}
		file := filepath.Join(dir, h.Name)
		require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o755))
		require.NoError(t, os.WriteFile(file, []byte(includes+declarations(t, h)), 0o644))
		includes += "#include <" + h.Name + ">\n"
	}
	r.Headers = types
	for _, target := range r.Targets {
		report, err := verbsabi.CWitness(context.Background(), clang(t, &r, target), dir+":"+ourLibrary(t), &r, target)
		require.NoError(t, err)
		assert.Empty(t, report.Mismatches, target)
		assert.Equal(t, verbsabi.Counts{Structs: 108, Fields: 685, Enumerators: 440}, report.Counts)
	}
}

// declarations returns the enumerations and records of a header in C.
func declarations(t *testing.T, h model.Header) string {
	var b strings.Builder
	for _, e := range h.Enums {
		fmt.Fprintf(&b, "enum %s {\n", e.Tag)
		for _, n := range e.Enumerators {
			fmt.Fprintf(&b, "\t%s = %s,\n", n.Name, n.Value)
		}
		b.WriteString("};\n")
	}
	for i := range h.Records {
		if kind := h.Records[i].Kind; kind == model.Struct || kind == model.Incomplete { // parameters may name it before
			fmt.Fprintf(&b, "struct %s;\n", h.Records[i].Tag)
		}
	}
	for i := range h.Records {
		if rec := &h.Records[i]; rec.Kind == model.Struct || rec.Kind == model.Union {
			b.WriteString(record(t, rec) + ";\n")
		}
	}
	return b.String()
}

func record(t *testing.T, rec *model.Record) string {
	t.Helper()
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s {\n", rec.Kind, rec.Tag)
	for _, f := range rec.Fields {
		require.Nil(t, f.Bits, "%s.%s", rec.Tag, f.Name)
		name := f.Name
		for _, n := range f.Dims {
			name += fmt.Sprintf("[%d]", n)
		}
		switch {
		case f.Record != nil:
			b.WriteString(record(t, f.Record) + " " + name)
		case f.Func != nil:
			b.WriteString(f.Func.Declare("(*" + name + ")"))
		default:
			typ, err := model.ParseType(f.Type)
			require.NoError(t, err)
			b.WriteString(typ.Declare(f.Name))
		}
		b.WriteString(";\n")
	}
	return b.String() + "}"
}
