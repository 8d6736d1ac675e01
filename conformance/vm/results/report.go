// SPDX-License-Identifier: BSD-2-Clause

package results

import (
	"fmt"
	"slices"
	"strings"

	"github.com/goverbs/goverbs/generated/ibv"
)

// Kernels lists the kernels with recorded results, oldest first.
var Kernels = []string{"6.1", "6.12", "7"}

// verb is a way to post, with its documented behavior.
type verb struct {
	name, file string
	keys       int
	valid      func(ibv.QPType, ibv.WROpcode) ibv.Validity
	flag       func(ibv.QPType, ibv.WROpcode, ibv.SendFlags) ibv.Validity
}

var verbs = []verb{
	{"ibv_post_send", "post_send", 3, ibv.PostSendValidity, ibv.SendFlagValidity},
	{"ibv_wr_*", "wr_post", 4, func(q ibv.QPType, o ibv.WROpcode) ibv.Validity { return ibv.WRPost(q, o).Validity },
		ibv.WRFlagValidity},
}

// Verdict compares documented and measured behavior of a cell.
type Verdict string

const (
	Agreed       Verdict = "documented and works"
	Missing      Verdict = "documented and does not work"
	Undocumented Verdict = "not documented and works"
	Refused      Verdict = "not documented and does not work"
)

// cell is one combination on one kernel.
type cell struct {
	qp, opcode, flags, setter string
	documented                ibv.Validity
	works                     bool
	measured                  string // result
}

func (c cell) verdict() Verdict {
	documented := c.documented.Answer == ibv.AnswerYes || c.documented.Answer == ibv.AnswerNeedsCapability
	switch {
	case documented && c.works:
		return Agreed
	case documented:
		return Missing
	case c.works:
		return Undocumented
	}
	return Refused
}

// cells returns the recorded results of a verb on a kernel, with the documented behavior.
func (v verb) cells(kernel string) ([]cell, error) {
	table, ok, err := Read(v.file+"-"+kernel+".csv", v.keys)
	if err != nil || !ok {
		return nil, err
	}
	return v.of(table), nil
}

// of returns the results of a table, with the documented behavior.
func (v verb) of(table Table) (all []cell) {
	for _, row := range table.Rows {
		at := func(column string) string {
			if i := slices.Index(table.Columns, column); i >= 0 {
				return row[i]
			}
			return ""
		}
		c := cell{qp: at("qp_type"), opcode: at("opcode"), flags: at("flags"), setter: at("setter")}
		c.documented = v.documented(c)
		unsignalled := c.flags == "none" && at("wc_status") == "none"
		c.works = at("post") == "0" && (at("wc_status") == "SUCCESS" || unsignalled) &&
			(at("data") == "ok" || at("data") == "-") && (at("qp_state") == "RTS" || at("qp_state") == unreported)
		switch {
		case c.works:
			c.measured = "works"
		case at("create") != "" && at("create") != "0":
			c.measured = "create " + at("create")
		case at("post") != "0":
			c.measured = "post " + at("post")
		case at("wc_status") == "SUCCESS" || at("wc_status") == "none":
			c.measured = at("wc_status") + ", data " + at("data")
		default:
			c.measured = at("wc_status")
		}
		all = append(all, c)
	}
	return all
}

// documented returns the verb's entry in its table, or in the table of its flags if a flag other than SIGNALED is set.
func (v verb) documented(c cell) ibv.Validity {
	qp, opcode := number[ibv.QPType](c.qp, "IBV_QPT_"), number[ibv.WROpcode](c.opcode, "IBV_WR_")
	if flag, ok := strings.CutPrefix(c.flags, "SIGNALED|"); ok {
		return v.flag(qp, opcode, number[ibv.SendFlags](flag, "IBV_SEND_"))
	}
	if takes := ibv.WRPost(qp, opcode); c.setter == "inline" && takes.Answer == ibv.AnswerYes &&
		takes.Data&ibv.WRSetInlineData == 0 {
		return ibv.Validity{Answer: ibv.AnswerNo, Reason: "the builder takes no inline data", Source: takes.Source}
	}
	return v.valid(qp, opcode)
}

// number returns the value of an enumerator by name, or an invalid value.
func number[T interface {
	~uint32
	String() string
}](name, prefix string) T {
	for n := range T(1 << 12) {
		if n.String() == prefix+name {
			return n
		}
	}
	return ^T(0)
}

// Report returns a page of Markdown that compares documented with measured behavior and lists every difference.
func Report() (string, error) {
	var b strings.Builder
	b.WriteString("# Behavior of Soft-RoCE\n\nMeasured on Linux " + strings.Join(Kernels, ", ") +
		", compared with the tables of rdma-core's man pages. " +
		"Generated from the CSV files here by `go test ./conformance/vm/results -update`.\n" +
		"A failure is the completion's status, or the call that failed and its error.\n")
	for _, v := range verbs {
		if err := v.report(&b); err != nil {
			return "", err
		}
	}
	for _, one := range []struct {
		title, file string
		keys        int
	}{
		{"Queue pairs that can be created", "create_qp", 1},
		{"Posting receives, by queue pair state", "post_recv", 1},
		{"Verbs that Soft-RoCE or the kernel's contemporary library lacks", "unsupported", 1},
		{"Control verbs: success and each failure", "control", 2},
		{"Asynchronous events", "events", 1},
		{"Removal of an open device", "removed", 1},
		{"Mistakes with an RC queue pair, posted with ibv_post_send", "mistakes", 1},
		{"UC and UD messages that the receiver cannot take", "unreliable", 3},
		{"Attributes that ibv_query_qp returns", "query_qp", 3},
		{"The header before a datagram", "grh", 2},
	} {
		if err := reportRows(&b, one.title, one.file, one.keys); err != nil {
			return "", err
		}
	}
	if err := reportTransitions(&b); err != nil {
		return "", err
	}
	return b.String(), nil
}

func (v verb) report(b *strings.Builder) error {
	fmt.Fprintf(b,
		"\n## %s\n\nWith IBV_SEND_SIGNALED:\n\n"+
			"| opcode | queue pair | documented | measured | |\n|---|---|---|---|---|\n",
		v.name)
	grouped := map[string]*line{}
	var order []string
	for _, kernel := range Kernels {
		cells, err := v.cells(kernel)
		if err != nil {
			return err
		}
		for _, c := range cells {
			key := c.opcode + "|" + c.qp + "|" + c.flags + "|" + c.setter
			if grouped[key] == nil {
				grouped[key] = &line{cell: c}
				order = append(order, key)
			}
			grouped[key].add(kernel, c)
		}
	}
	for _, key := range order {
		if l := grouped[key]; l.flags == "SIGNALED" && l.setter != "inline" {
			fmt.Fprintf(b, "| %s | %s | %s | %s | %s |\n", l.opcode, l.qp, l.documented.Answer, l.all(), l.verdicts())
		}
	}
	for _, verdict := range []Verdict{Missing, Undocumented} {
		fmt.Fprintf(b, "\n### %s: %s\n\n", v.name, verdict)
		found := 0
		for _, key := range order {
			if l := grouped[key]; slices.Contains(l.judged, verdict) {
				found++
				fmt.Fprintf(b, "- %s\n", l.describe())
			}
		}
		if found == 0 {
			b.WriteString("Nothing.\n")
		}
	}
	return nil
}

// line is a combination on all kernels.
type line struct {
	cell
	what    []string   // distinct results
	kernels [][]string // kernels with each result
	judged  []Verdict
}

func (l *line) add(kernel string, c cell) {
	i := slices.Index(l.what, c.measured)
	if i < 0 {
		i = len(l.what)
		l.what, l.kernels = append(l.what, c.measured), append(l.kernels, nil)
	}
	l.kernels[i] = append(l.kernels[i], kernel)
	l.judged = append(l.judged, c.verdict())
}

// all lists the results, with the kernels if they differ.
func (l *line) all() string {
	if len(l.what) == 1 && len(l.kernels[0]) == len(Kernels) {
		return l.what[0]
	}
	var all []string
	for i, name := range l.what {
		all = append(all, name+" ("+strings.Join(l.kernels[i], ", ")+")")
	}
	return strings.Join(all, ", ")
}

func (l *line) verdicts() string {
	var all []string
	for _, v := range slices.Compact(slices.Clone(l.judged)) {
		all = append(all, string(v))
	}
	return strings.Join(all, ", then ")
}

func (l *line) describe() string {
	s := fmt.Sprintf("%s on %s, %s", l.opcode, l.qp, l.flags)
	if l.setter != "" {
		s += ", data by " + l.setter
	}
	s += ": " + l.all()
	if l.documented.Condition != "" {
		s += "; documented where " + l.documented.Condition
	}
	return s
}
