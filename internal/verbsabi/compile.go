// SPDX-License-Identifier: BSD-2-Clause

package verbsabi

import (
	"context"
	"fmt"
	"regexp"
	"sort"
	"strconv"
	"strings"
)

// Check compiles the witness against the headers in includeDir, or in the compiler's own directories if it is empty,
// and reports every item that the compiler rejects. An error means that nothing was verified.
func (w *Witness) Check(ctx context.Context, cc Compiler, includeDir string) (*Report, error) {
	text, starts := w.render()
	out, err := cc.run(ctx, includeDir, text, "-DGOVERBS_COUNT")
	if err != nil {
		return nil, err
	}
	said, err := readDiagnostics(out)
	if err != nil {
		return nil, fmt.Errorf("%s for %s: %w", cc, w.Target, err)
	}
	lastCheck := starts[len(starts)-1] + strings.Count(w.checks[len(w.checks)-1].code, "\n")
	counted := int64(-1)
	messages := map[int]string{} // by index of the check
	for _, d := range said {
		switch {
		case d.line > lastCheck:
			if n, ok := arrayLength(d.message); ok {
				counted = n - 1
				continue
			}
			return nil, fmt.Errorf("%s for %s: %s", cc, w.Target, d.message)
		case d.line < starts[0]:
			return nil, fmt.Errorf("%s for %s: %s%s", cc, w.Target, d.message, headersHint(d.message))
		default:
			i := sort.SearchInts(starts, d.line+1) - 1
			if messages[i] == "" {
				messages[i] = d.message
			}
		}
	}
	if counted < 0 {
		return nil, fmt.Errorf("%s for %s: the C compiler stopped early: %s", cc, w.Target, firstLines(out, 3))
	}
	if counted != int64(len(w.checks)) {
		return nil, fmt.Errorf("%s for %s: %d assertions were generated but %d compiled", cc, w.Target, len(w.checks),
			counted)
	}
	elsewhere, err := w.checkBits(ctx, cc, includeDir)
	if err != nil {
		return nil, err
	}
	r := &Report{Project: w.Project, Release: w.Release, Target: w.Target, Counts: w.Counts,
		Facts:      len(w.checks) + len(w.bits),
		Mismatches: []Mismatch{}}
	var found []check
	for i, c := range w.checks {
		if message, ok := messages[i]; ok {
			r.Mismatches = append(r.Mismatches, Mismatch{Item: c.item, Message: message})
			found = append(found, c)
		}
	}
	if len(found) > 0 {
		w.reveal(ctx, cc, includeDir, found, r.Mismatches)
	}
	r.Mismatches = append(r.Mismatches, elsewhere...)
	return r, nil
}

// reveal compiles a second file whose errors contain the compiler's values. Values that no error contains stay empty.
func (w *Witness) reveal(ctx context.Context, cc Compiler, includeDir string, checks []check, into []Mismatch) {
	v := Witness{prelude: w.prelude}
	for _, c := range checks {
		v.add(check{code: revealing(c)})
	}
	text, starts := v.render()
	out, err := cc.run(ctx, includeDir, text)
	if err != nil {
		return
	}
	said, err := readDiagnostics(out)
	if err != nil {
		return
	}
	halves := make([][]int64, len(checks))
	for _, d := range said {
		i := sort.SearchInts(starts, d.line+1) - 1
		if i < 0 || i >= len(checks) {
			continue
		}
		if n, ok := arrayLength(d.message); ok && checks[i].value != "" {
			halves[i] = append(halves[i], n-1)
		} else if t := pointedType(d.message); t != "" && checks[i].value == "" {
			into[i].Found = t
		}
	}
	for i, h := range halves {
		if len(h) != 3 { // sign, high and low half
			continue
		}
		bits := uint64(h[1])<<32 | uint64(h[2])
		if h[0] != 0 {
			into[i].Found = strconv.FormatInt(int64(bits), 10)
		} else {
			into[i].Found = strconv.FormatUint(bits, 10)
		}
	}
}

// revealing returns a line of C whose errors contain the type, or the value encoded in array lengths.
func revealing(c check) string {
	switch {
	case c.value != "":
		array := func(name, length string) string {
			return fmt.Sprintf("struct goverbs_none *goverbs_%s = (char (*)[1 + (%s)])0;", name, length)
		}
		id := strings.Map(identifierRune, c.item.String())
		return array("sign_"+id, "("+c.value+") < 0") + " " +
			array("high_"+id, "(unsigned long long)("+c.value+") >> 32") + " " +
			array("low_"+id, "(unsigned long long)("+c.value+") & 0xffffffff")
	case c.typed != "":
		return fmt.Sprintf("struct goverbs_none *goverbs_type_%s = %s;", strings.Map(identifierRune, c.item.String()),
			c.typed)
	default:
		return c.code
	}
}

func identifierRune(r rune) rune {
	if r == '_' || r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' {
		return r
	}
	return '_'
}

// diagnostic is a compiler error in the witness itself.
type diagnostic struct {
	line    int
	message string
}

var diagnosticLine = regexp.MustCompile(`^(.*?):(?:(\d+):)?(?:(\d+):)? (?:fatal )?error: (.*)$`)

// readDiagnostics extracts the errors from compiler output. An error in a header or of the command means that the
// witness was not compiled.
func readDiagnostics(out string) ([]diagnostic, error) {
	var all []diagnostic
	for line := range strings.Lines(out) {
		line = strings.TrimSpace(line)
		m := diagnosticLine.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		if m[1] != "<stdin>" || m[2] == "" {
			return nil, fmt.Errorf("%s%s", line, headersHint(line))
		}
		n, err := strconv.Atoi(m[2])
		if err != nil {
			return nil, fmt.Errorf("cannot read %q", line)
		}
		all = append(all, diagnostic{n, m[4]})
	}
	return all, nil
}

var (
	arrayType    = regexp.MustCompile(`char ?\(\*\) ?\[(\d+)\]`)
	incompatible = regexp.MustCompile(`(?:from incompatible pointer type|with an expression of type) '([^']*)'`)
)

func arrayLength(message string) (int64, bool) {
	m := arrayType.FindStringSubmatch(message)
	if m == nil {
		return 0, false
	}
	n, err := strconv.ParseInt(m[1], 10, 64)
	return n, err == nil
}

func pointedType(message string) string {
	if m := incompatible.FindStringSubmatch(message); m != nil {
		return strings.Join(strings.Fields(m[1]), " ")
	}
	return ""
}

// headersHint returns a hint for missing headers.
func headersHint(message string) string {
	if strings.Contains(message, "No such file or directory") || strings.Contains(message, "file not found") {
		return "; install libibverbs-dev and the C library's headers for this target, or name another include directory"
	}
	return ""
}

func firstLines(s string, n int) string {
	lines := strings.SplitN(strings.TrimSpace(s), "\n", n+1)
	if len(lines) > n {
		lines = append(lines[:n], "…")
	}
	if len(lines) == 1 && lines[0] == "" {
		return "no output"
	}
	return strings.Join(lines, " / ")
}
