// SPDX-License-Identifier: BSD-2-Clause

package trace

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/goverbs/goverbs/cmd/goverbs/internal/page"
)

// Finding is a failure with its likely cause.
type Finding struct {
	T      uint64  `json:"t"` // nanoseconds since the start of the trace
	Where  string  `json:"where"`
	What   string  `json:"what"`  // the status, or the error
	Cause  string  `json:"cause"` // a stable identifier: "rkey-unknown"
	Why    string  `json:"why"`
	Fix    string  `json:"fix"`
	Counts string  `json:"counters,omitempty"`
	qp     *uint32 // or nil
}

// Findings lists all failures by time. Consequences of an earlier failure are left out.
type Findings []*Finding

// WriteText writes a paragraph for each finding.
func (all Findings) WriteText(w io.Writer) error {
	w = plain{w}
	if len(all) == 0 {
		_, err := fmt.Fprintln(w, "no errors in the trace")
		return err
	}
	for i, f := range all {
		if i > 0 {
			fmt.Fprintln(w)
		}
		fmt.Fprintf(w, "%.3f ms, %s: %s\n", float64(f.T)/1e6, f.Where, f.What)
		for _, part := range [][2]string{{"cause", f.Cause}, {"reason", f.Why}, {"fix", f.Fix}, {"counters",
			f.Counts}} {
			if part[1] != "" {
				if err := page.Paragraph(w, "  "+part[0], part[1], 12); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// analyzer replays traces.
type analyzer struct {
	*state
	all Findings
	ids map[idKey]*idState
	// noDevice holds a pending finding of a trace: the kernel has no RDMA. It is dropped if the program opens another
	// device.
	noDevice map[*Trace]*Finding
	counted  map[counterKey]string // the latest evidence of each counter
}

type counterKey struct {
	trace  *Trace
	device string
}

// Explain returns the failures in the traces of one program, or of the programs on both ends.
func Explain(traces ...*Trace) Findings {
	j := &analyzer{state: &state{ahs: map[ahKey]string{}, gids: map[string][]string{}}, all: Findings{},
		ids: map[idKey]*idState{}, noDevice: map[*Trace]*Finding{}, counted: map[counterKey]string{}}
	type item struct {
		*Trace
		*Event
	}
	var items []item
	for _, t := range traces {
		for _, e := range t.Events {
			items = append(items, item{t, e})
		}
	}
	if len(traces) == 1 {
		slices.SortStableFunc(items, func(a, b item) int { return compare(a.T, b.T) })
	}
	for pass := range 2 { // the first pass collects the objects of all programs
		for _, i := range items {
			if pass == 0 && len(traces) > 1 && i.WRs == nil && i.WCs == nil {
				j.update(i.Trace, i.Event)
			} else if pass == 1 {
				j.event(i.Trace, i.Event, len(traces) == 1)
			}
		}
	}
	j.stalled()
	j.pending()
	slices.SortStableFunc(j.all, func(a, b *Finding) int { return compare(a.T, b.T) })
	return j.all
}

func compare(a, b uint64) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// event processes an event.
func (j *analyzer) event(t *Trace, e *Event, onlyTrace bool) {
	if onlyTrace || e.WRs != nil {
		j.update(t, e)
	}
	j.track(t, e)
	switch {
	case (e.Verb == "ibv_destroy_qp" || e.Verb == "rdma_destroy_qp") && e.QP != nil && e.Errno == 0:
		j.ended(j.find(t, *e.QP))
	case e.Verb == "ibv_open_device" && e.Errno == 0:
		j.all = slices.DeleteFunc(j.all, func(f *Finding) bool { return f == j.noDevice[t] })
		j.noDevice[t] = &Finding{} // not reported later
	case e.Verb == "counters":
		j.counts(t, e)
	case e.Event != "":
		j.async(t, e)
	case e.Errno != 0:
		j.failedCall(t, e)
	}
	for i := range e.WCs {
		j.completion(t, e, &e.WCs[i])
	}
}

// add adds a finding about a queue pair, which may be nil.
func (j *analyzer) add(e *Event, q *queuePair, name string, c cause) *Finding {
	f := &Finding{T: e.T, Where: e.Verb, What: name, Cause: c.name, Why: c.why, Fix: c.fix}
	if q != nil {
		f.Where, f.qp = fmt.Sprintf("QP %#x (%s)", q.num, q.Type), &q.num
	}
	j.all = append(j.all, f)
	return f
}

// completion processes a completion. It reports only the first failure on a connection, because the others follow from
// it.
func (j *analyzer) completion(t *Trace, e *Event, wc *Completion) {
	q := j.find(t, wc.QP)
	if q == nil {
		return
	}
	request, receive := q.complete(wc)
	if q.left != 0 && e.T >= q.left {
		q.byProgram = true
	}
	if wc.Status == "SUCCESS" || q.failed != nil {
		return
	}
	peer := j.peer(q)
	if wc.Status == "WR_FLUSH_ERR" && (peer != nil && peer.failed != nil || q.gone != 0) {
		return
	}
	if request == nil {
		request = &posted{WR: WR{ID: wc.ID}, t: e.T}
	}
	c := j.statusCause(wc.Status, q, peer, request, receive)
	finding := fmt.Sprintf("%s of request %d", wc.Status, wc.ID)
	if request.Op != "" {
		finding += ", " + request.Op
	}
	if peer != nil && peer.failed != nil && peer.failed.Cause == c.name {
		q.failed = peer.failed // the same failure on both ends
		return
	}
	q.failed = j.add(e, q, finding, c)
	q.failed.Counts = j.counted[counterKey{t, q.Device}]
	q.State = "ERR"
}

// ended handles the destruction of a queue pair. If the program moved it to ERR before, ended drops that finding:
// programs drain connections this way.
func (j *analyzer) ended(q *queuePair) {
	if q != nil && q.failed != nil && q.failed.Cause == "moved-to-error" {
		j.all = slices.DeleteFunc(j.all, func(f *Finding) bool { return f == q.failed })
	}
}

// counts records device counters. A trace has them after a failed completion, at most once per second.
func (j *analyzer) counts(t *Trace, e *Event) {
	of, text := counterKey{t, e.Device}, evidence(e.Counted)
	j.counted[of] = text
	for _, q := range j.qps {
		if own := q.failed != nil && q.failed.qp == &q.num; own && q.failed.Counts == "" && of == (counterKey{q.trace,
			q.Device}) {
			q.failed.Counts = text
		}
	}
}

// evidence lists counters that indicate a problem.
func evidence(counted []Counter) string {
	var all []string
	for _, c := range counted {
		for _, word := range []string{"err", "drop", "retr", "nak", "timeout", "rnr", "seq", "discard", "lost"} {
			if strings.Contains(strings.ToLower(c.Name), word) {
				all = append(all, fmt.Sprintf("%s %d", c.Name, c.Value))
				break
			}
		}
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}
