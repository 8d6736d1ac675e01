package rules

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/goverbs/goverbs/gen/model"
)

// Answer is what a cell of a validity table says.
type Answer string

const (
	Yes         Answer = "yes"
	No          Answer = "no"
	Elsewhere   Answer = "elsewhere"   // not posted with the verb that the table is about
	Unspecified Answer = "unspecified" // no source says
	Capability  Answer = "capability"  // yes where the device has the capability that Condition names
)

// Validity is one cell with all that is known about it.
type Validity struct {
	Answer    Answer
	Condition string // for Yes and Capability: what else must hold
	Reason    string
	Source    string
	Note      string // what another source says, or how the page's words were read
}

// PostSend says what ibv_post_send takes: a cell for every opcode, queue pair type and send flag of a release. Enumerators
// are in the order of the header.
type PostSend struct {
	Release  string
	Page     string
	StandIns map[string]string // see Grid
	QPTypes  []string
	Opcodes  []string
	Cells    [][]Validity // by opcode, then queue pair type
	Flags    []SendFlag
}

// SendFlag is one send flag: its rule, and what follows for every operation. Where the operation itself is not valid, its cell
// repeats that answer.
type SendFlag struct {
	Name      string
	Condition string       // what else must hold
	QPTypes   []Validity   // the rule's half about queue pair types
	Opcodes   []Validity   // the rule's half about opcodes
	Cells     [][]Validity // by opcode, then queue pair type
}

// ResolvePostSend takes the release's table post_send and its flags, applies the errata, and fills every cell. Errata without
// effect are errors; the table is then given as it is without them.
func ResolvePostSend(r *model.Release, errata []*Erratum) (*PostSend, error) {
	p := postSendResolver{flagOf: map[string]*model.Flag{}}
	if err := p.read(r); err != nil {
		return nil, err
	}
	for _, e := range errata {
		e.used = false
		if err := p.sort(e); err != nil {
			p.errs = append(p.errs, err)
		}
	}
	p.operations()
	for _, name := range p.flags {
		p.out.Flags = append(p.out.Flags, p.flag(name))
	}
	for _, e := range errata {
		if !e.used && len(p.errs) == 0 {
			p.errs = append(p.errs, fmt.Errorf("%s: stale erratum: it does not change what is said about %s × %s; delete the row", e.At, e.A, e.B))
		}
	}
	return &p.out, errors.Join(p.errs...)
}

type postSendResolver struct {
	out    PostSend
	table  *model.Table
	flags  []string // enumerators of ibv_send_flags
	flagOf map[string]*model.Flag
	errata map[[2]string][]*Erratum // by cell
	source string
	errs   []error
}

// read finds the table and the enums, and checks that they go together.
func (p *postSendResolver) read(r *model.Release) error {
	for i := range r.Tables {
		if r.Tables[i].Name == "post_send" {
			p.table = &r.Tables[i]
		}
	}
	if p.table == nil {
		return fmt.Errorf("model of %s: it has no table post_send; record it again with its man pages", r.Name)
	}
	p.source = fmt.Sprintf("%s, rdma-core %s", p.table.Page, r.PageRelease(p.table.Page))
	p.out.Release, p.out.Page, p.out.StandIns = r.Name, p.table.Page, r.StandIns
	var errs []error
	enum := func(tag string) []string {
		names, err := distinctEnumerators(r, tag)
		errs = append(errs, err)
		return names
	}
	p.out.QPTypes, p.out.Opcodes, p.flags = enum("ibv_qp_type"), enum("ibv_wr_opcode"), enum("ibv_send_flags")
	if err := errors.Join(errs...); err != nil {
		return err
	}
	unknown := func(what, name string, all []string) {
		if !slices.Contains(all, name) {
			errs = append(errs, fmt.Errorf("model of %s: %s: %s %s is not in the headers", r.Name, p.table.Page, what, name))
		}
	}
	for _, name := range p.table.Columns {
		unknown("queue pair type", name, p.out.QPTypes)
	}
	for _, row := range p.table.Rows {
		unknown("opcode", row.Name, p.out.Opcodes)
		for _, cell := range row.Cells {
			if cell != string(Yes) && cell != string(No) {
				errs = append(errs, fmt.Errorf("model of %s: %s: %s has a cell %q, neither yes nor no", r.Name, p.table.Page, row.Name, cell))
			}
		}
	}
	for i, f := range r.Flags {
		if f.Page != p.table.Page {
			continue
		}
		p.flagOf[f.Name] = &r.Flags[i]
		unknown("send flag", f.Name, p.flags)
		for _, name := range f.QPTypes {
			unknown("queue pair type", name, p.out.QPTypes)
		}
		for _, name := range f.Opcodes {
			unknown("opcode", name, p.out.Opcodes)
		}
	}
	p.errata = map[[2]string][]*Erratum{}
	return errors.Join(errs...)
}

// distinctEnumerators are an enum's enumerators. A repeated value would make two rows of one, so it is refused.
func distinctEnumerators(r *model.Release, tag string) ([]string, error) {
	for i := range r.Headers {
		for _, e := range r.Headers[i].Enums {
			if e.Tag != tag {
				continue
			}
			var names []string
			owner := map[model.Int]string{}
			for _, n := range e.Enumerators {
				if owner[n.Value] != "" {
					return nil, fmt.Errorf("model of %s: enum %s: %s repeats the value of %s; teach the table which one counts", r.Name, tag, n.Name, owner[n.Value])
				}
				owner[n.Value] = n.Name
				names = append(names, n.Name)
			}
			return names, nil
		}
	}
	return nil, fmt.Errorf("model of %s: it has no enum %s", r.Name, tag)
}

// sort puts an erratum to its cell, after checking that the cell exists.
func (p *postSendResolver) sort(e *Erratum) error {
	var other []string
	switch {
	case slices.Contains(p.out.QPTypes, e.A):
		other = p.out.Opcodes
	case slices.Contains(p.flags, e.A):
		other = append(slices.Clone(p.out.QPTypes), p.out.Opcodes...)
		if e.Answer == Elsewhere || e.Answer == Unspecified {
			return fmt.Errorf("%s: a flag's rule is yes or no, not %s", e.At, e.Answer)
		}
	default:
		return fmt.Errorf("%s: %s is neither a queue pair type nor a send flag of %s", e.At, e.A, p.out.Release)
	}
	if !slices.Contains(other, e.B) {
		return fmt.Errorf("%s: %s does not go with %s, or %s does not have it", e.At, e.B, e.A, p.out.Release)
	}
	p.errata[[2]string{e.A, e.B}] = append(p.errata[[2]string{e.A, e.B}], e)
	return nil
}

// operations fills the cells of opcode by queue pair type.
func (p *postSendResolver) operations() {
	for _, op := range p.out.Opcodes {
		cells := make([]Validity, len(p.out.QPTypes))
		for i, qpt := range p.out.QPTypes {
			cells[i] = p.apply(qpt, op, p.page(qpt, op))
		}
		p.out.Cells = append(p.out.Cells, cells)
	}
}

// page is what the page's table says about a cell; its Answer is empty where it says nothing.
func (p *postSendResolver) page(qpt, op string) Validity {
	column := slices.Index(p.table.Columns, qpt)
	row := slices.IndexFunc(p.table.Rows, func(r model.TableRow) bool { return r.Name == op })
	if column < 0 || row < 0 {
		return Validity{}
	}
	if p.table.Rows[row].Cells[column] == string(Yes) {
		return Validity{Answer: Yes, Reason: "the table of opcodes lists it", Source: p.source}
	}
	var valid []string
	for i, cell := range p.table.Rows[row].Cells {
		if cell == string(Yes) {
			valid = append(valid, p.table.Columns[i])
		}
	}
	reason := fmt.Sprintf("the table of opcodes lists %s for %s only", op, strings.Join(valid, ", "))
	if valid == nil {
		reason = fmt.Sprintf("the table of opcodes lists %s for no queue pair type", op)
	}
	return Validity{Answer: No, Reason: reason, Source: p.source}
}

// apply applies the errata of a cell to what the page says.
func (p *postSendResolver) apply(a, b string, said Validity) Validity {
	v := said
	for _, e := range p.errata[[2]string{a, b}] {
		switch {
		case e.Kind == Answers && e.Answer == said.Answer:
			p.errs = append(p.errs, fmt.Errorf("%s: stale erratum: %s says %s itself; delete the row", e.At, p.out.Page, e.Answer))
		case e.Kind == Answers && said.Answer != "" && e.Answer == Unspecified:
			p.errs = append(p.errs, fmt.Errorf("%s: %s says %s about %s × %s, so it is not unspecified; use disputed", e.At, p.out.Page, said.Answer, a, b))
		case e.Kind == Answers:
			v = Validity{Answer: e.Answer, Reason: e.Reason, Source: e.Source, Note: v.Note}
			if said.Answer != "" {
				v.Note = joinNotes(v.Note, fmt.Sprintf("%s says %s: %s", p.source, said.Answer, said.Reason))
			}
		case said.Answer == "":
			p.errs = append(p.errs, fmt.Errorf("%s: %s says nothing about %s × %s that could be %s; give an answer", e.At, p.out.Page, a, b, e.Kind))
		case e.Kind == Disputes && e.Answer == said.Answer:
			p.errs = append(p.errs, fmt.Errorf("%s: stale erratum: %s says %s as well, so nothing is disputed; delete the row", e.At, p.out.Page, e.Answer))
		default:
			v.Note = joinNotes(v.Note, e.note())
		}
		e.used = e.used || slices.Contains(p.out.QPTypes, a) // the rule of a flag counts where a cell shows it
	}
	if v.Answer == "" {
		return Validity{Answer: Unspecified, Reason: noSource, Source: p.source}
	}
	return v
}

func joinNotes(a, b string) string {
	if a == "" || b == "" {
		return a + b
	}
	return a + "; " + b
}

// flag resolves the rule of one send flag and fills its cells.
func (p *postSendResolver) flag(name string) SendFlag {
	flag := SendFlag{Name: name}
	var types, opcodes []string // the rule's limits
	if rule := p.flagOf[name]; rule != nil {
		types, opcodes = rule.QPTypes, rule.Opcodes
		if rule.Capability != "" {
			flag.Condition = fmt.Sprintf("%s of the device must report it for the queue pair's type", rule.Capability)
		}
		if rule.SigAll {
			flag.Condition = joinNotes(flag.Condition, "it has an effect only when the queue pair was created with sq_sig_all = 0")
		}
	}
	flag.QPTypes, flag.Opcodes = p.half(name, p.out.QPTypes, types), p.half(name, p.out.Opcodes, opcodes)
	for i := range p.out.Opcodes {
		row := slices.Clone(p.out.Cells[i])
		for j := range row {
			if row[j].Answer == Yes {
				row[j] = p.combine(&flag, j, i)
			}
		}
		flag.Cells = append(flag.Cells, row)
	}
	return flag
}

// half is what a flag's rule says about each of the queue pair types, or of the opcodes: all are valid unless there is a limit.
func (p *postSendResolver) half(name string, all, limit []string) []Validity {
	var cells []Validity
	for _, x := range all {
		var said Validity
		if p.flagOf[name] != nil {
			said = Validity{Answer: Yes, Source: p.source}
		}
		if len(limit) > 0 {
			said.Reason = fmt.Sprintf("%s is limited to %s", name, strings.Join(limit, ", "))
			if !slices.Contains(limit, x) {
				said.Answer = No
			}
		}
		cells = append(cells, p.apply(name, x, said))
	}
	return cells
}

// combine joins the halves of a flag's rule for an operation that is itself valid: a no of either decides.
func (p *postSendResolver) combine(f *SendFlag, qpt, op int) Validity {
	byType, byOpcode := f.QPTypes[qpt], f.Opcodes[op]
	use := func(x string) {
		for _, e := range p.errata[[2]string{f.Name, x}] {
			e.used = true
		}
	}
	if byType.Answer != Yes {
		use(p.out.QPTypes[qpt])
		return byType
	}
	use(p.out.Opcodes[op])
	if byOpcode.Answer != Yes {
		return byOpcode
	}
	use(p.out.QPTypes[qpt])
	v := Validity{Answer: Yes, Condition: f.Condition, Note: joinNotes(byType.Note, byOpcode.Note)}
	for _, half := range []Validity{byType, byOpcode} {
		if half.Reason != "" {
			v.Reason = joinNotes(v.Reason, half.Reason)
			if half.Source != v.Source {
				v.Source = joinNotes(v.Source, half.Source)
			}
		}
	}
	if v.Reason == "" {
		v.Reason, v.Source = "the rule of "+f.Name+" excludes no opcode and no queue pair type", p.source
	}
	return v
}
