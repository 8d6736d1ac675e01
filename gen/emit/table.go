package emit

import (
	"fmt"
	"math"
	"strings"

	"github.com/dave/jennifer/jen"

	"github.com/goverbs/goverbs/gen/rules"
)

// PostSend prints what ibv_post_send takes: types, tables of constants, and lookups that neither allocate nor search a map. The
// enumerations themselves are printed elsewhere; pkg gives their Go names.
func PostSend(f *jen.File, pkg rules.Package, p *rules.PostSend) error {
	t := &postSendTable{f: f, pkg: pkg, p: p, index: map[rules.Validity]int{}}
	t.man = strings.TrimSuffix(p.Page, ".3") + "(3)"
	t.qpType, t.opcode, t.flags = pkg.TypeName("ibv_qp_type"), pkg.TypeName("ibv_wr_opcode"), pkg.TypeName("ibv_send_flags")
	t.types()
	t.lookups()
	if err := t.cells(); err != nil {
		return err
	}
	t.position("postSendQPType", t.qpType, p.QPTypes, "a queue pair type's column")
	t.position("postSendOpcode", t.opcode, p.Opcodes, "an opcode's row")
	var flags []string
	for _, flag := range p.Flags {
		flags = append(flags, flag.Name)
	}
	t.position("sendFlag", t.flags, flags, "a flag's table")
	return nil
}

type postSendTable struct {
	f                     *jen.File
	pkg                   rules.Package
	p                     *rules.PostSend
	man                   string
	qpType, opcode, flags string                 // Go types
	index                 map[rules.Validity]int // position in postSendValidities
	rows                  []rules.Validity
}

// answers are the Go constants in the order of their values.
var answers = []struct {
	answer rules.Answer
	name   string
	prints string
	about  string
}{
	{rules.Unspecified, "AnswerUnspecified", "unspecified", "no source says, or it is up to the provider"},
	{rules.Yes, "AnswerYes", "yes", ""},
	{rules.No, "AnswerNo", "no", ""},
	{rules.Elsewhere, "AnswerNotInVerb", "not in this verb", "the operation is posted with another function, which Reason names"},
}

func answerName(a rules.Answer) string {
	for _, one := range answers {
		if one.answer == a {
			return one.name
		}
	}
	return string(a) // no such constant: the package does not compile
}

func (t *postSendTable) types() {
	f := t.f
	comment(f, "Answer is what a validity table says about one combination.\n\nMan: "+t.man)
	f.Type().Id("Answer").Uint8()
	comment(f, "Values of Answer.")
	var consts, cases []jen.Code
	for i, a := range answers {
		def := jen.Id(a.name).Id("Answer").Op("=").Lit(i)
		if a.about != "" {
			def.Comment("// " + a.about)
		}
		consts = append(consts, def)
		cases = append(cases, jen.Case(jen.Id(a.name)).Block(jen.Return(jen.Lit(a.prints))))
	}
	f.Const().Defs(consts...)
	comment(f, "String is the answer in words.")
	f.Func().Params(jen.Id("a").Id("Answer")).Id("String").Params().String().Block(
		jen.Switch(jen.Id("a")).Block(cases...),
		jen.Return(jen.Id("formatUnknown").Call(jen.Lit("Answer"), jen.Int64().Parens(jen.Id("a")))),
	)
	comment(f, "Validity is the answer of a validity table, and why.\n\nMan: "+t.man)
	f.Type().Id("Validity").Struct(
		jen.Id("Answer").Id("Answer"),
		jen.Id("Condition").String().Comment("// of AnswerYes: what else must hold, or \"\""),
		jen.Id("Reason").String(),
		jen.Id("Source").String().Comment("// the man page and its release, or where else the answer comes from"),
		jen.Id("Note").String().Comment("// what another source says, or how the page was read where it can be read in two ways; or \"\""),
	)
}

func (t *postSendTable) lookups() {
	f, zero := t.f, jen.Lit(0)
	source := "verbs.h, rdma-core " + t.p.Release
	unknown := func(what string) jen.Code {
		return jen.Return(jen.Id("Validity").Values(jen.Dict{
			jen.Id("Reason"): jen.Lit("rdma-core " + t.p.Release + " has no such " + what), jen.Id("Source"): jen.Lit(source),
		}))
	}
	positions := []jen.Code{
		jen.List(jen.Id("row"), jen.Id("column")).Op(":=").List(jen.Id("postSendOpcode").Call(jen.Id("op")), jen.Id("postSendQPType").Call(jen.Id("qpt"))),
		jen.If(jen.Id("column").Op("<").Add(zero)).Block(unknown("queue pair type")),
		jen.If(jen.Id("row").Op("<").Add(zero)).Block(unknown("opcode")),
	}
	operation := []jen.Code{jen.Id("qpt").Id(t.qpType), jen.Id("op").Id(t.opcode)}

	comment(f, "PostSendValidity says whether ibv_post_send takes an opcode on a queue pair of a type. Any values may be asked; unknown\n"+
		"ones are AnswerUnspecified. It does not allocate.\n\nMan: "+t.man)
	f.Func().Id("PostSendValidity").Params(operation...).Id("Validity").Block(append(positions,
		jen.Return(jen.Id("postSendValidities").Index(jen.Id("postSendCells").Index(jen.Id("row")).Index(jen.Id("column")))))...)

	comment(f, "PostSendQPTypes are the queue pair types on which ibv_post_send takes an opcode, for messages. The slice is shared and must\n"+
		"not be written to. It does not allocate.\n\nMan: "+t.man)
	f.Func().Id("PostSendQPTypes").Params(operation[1]).Index().Id(t.qpType).Block(
		jen.If(jen.Id("row").Op(":=").Id("postSendOpcode").Call(jen.Id("op")), jen.Id("row").Op(">=").Add(zero)).Block(
			jen.Return(jen.Id("postSendTypes").Index(jen.Id("row")))),
		jen.Return(jen.Nil()),
	)

	comment(f, "SendFlagValidity says whether an operation may bear a send flag: exactly one flag, and the answer of PostSendValidity where\n"+
		"the operation itself is not valid. It does not allocate.\n\nMan: "+t.man)
	f.Func().Id("SendFlagValidity").Params(append(operation, jen.Id("flag").Id(t.flags))...).Id("Validity").Block(append(positions,
		jen.Id("table").Op(":=").Id("sendFlag").Call(jen.Id("flag")),
		jen.If(jen.Id("table").Op(">=").Add(zero)).Block(
			jen.Return(jen.Id("postSendValidities").Index(jen.Id("sendFlagCells").Index(jen.Id("table")).Index(jen.Id("row")).Index(jen.Id("column"))))),
		jen.If(jen.Id("v").Op(":=").Id("PostSendValidity").Call(jen.Id("qpt"), jen.Id("op")), jen.Id("v").Dot("Answer").Op("!=").Id("AnswerYes")).Block(
			jen.Return(jen.Id("v"))),
		jen.Return(jen.Id("Validity").Values(jen.Dict{
			jen.Id("Reason"): jen.Lit("not exactly one send flag of rdma-core " + t.p.Release), jen.Id("Source"): jen.Lit(source),
		})))...)
}

// cells prints the tables. A cell is the number of a Validity, because few differ.
func (t *postSendTable) cells() error {
	f := t.f
	cells := t.matrix(t.p.Cells)
	var flags, types []jen.Code
	for _, flag := range t.p.Flags {
		flags = append(flags, t.row(flag.Name, t.matrix(flag.Cells)...))
	}
	if len(t.rows) > math.MaxUint8+1 {
		return fmt.Errorf("%s: %d different answers do not fit the uint8 cells; give postSendCells a wider type in gen/emit/table.go", t.p.Page, len(t.rows))
	}
	for i, op := range t.p.Opcodes {
		var valid []jen.Code
		for j, v := range t.p.Cells[i] {
			if v.Answer == rules.Yes {
				valid = append(valid, jen.Id(t.pkg.ConstName(t.p.QPTypes[j])))
			}
		}
		types = append(types, t.row(op, valid...))
	}
	var values []jen.Code
	for _, v := range t.rows {
		d := jen.Dict{jen.Id("Answer"): jen.Id(answerName(v.Answer))}
		for name, text := range map[string]string{"Condition": v.Condition, "Reason": v.Reason, "Source": v.Source, "Note": v.Note} {
			if text != "" {
				d[jen.Id(name)] = jen.Lit(text)
			}
		}
		values = append(values, jen.Line().Values(d))
	}
	rows, columns := jen.Index(jen.Lit(len(t.p.Opcodes))), jen.Index(jen.Lit(len(t.p.QPTypes)))
	comment(f, "postSendValidities are the distinct answers; the cells of the tables below are positions in it.")
	f.Var().Id("postSendValidities").Op("=").Index(jen.Op("...")).Id("Validity").Values(append(values, jen.Line())...)
	comment(f, "postSendCells has a row for each opcode and a column for each queue pair type.")
	f.Var().Id("postSendCells").Op("=").Add(rows, columns).Uint8().Values(append(cells, jen.Line())...)
	comment(f, "postSendTypes are the valid queue pair types of each opcode.")
	f.Var().Id("postSendTypes").Op("=").Add(rows).Index().Id(t.qpType).Values(append(types, jen.Line())...)
	comment(f, "sendFlagCells has a table like postSendCells for each send flag.")
	f.Var().Id("sendFlagCells").Op("=").Index(jen.Lit(len(t.p.Flags))).Add(rows, columns).Uint8().Values(append(flags, jen.Line())...)
	return nil
}

// row prints one element of a table on a line of its own, under the name of what it is for.
func (t *postSendTable) row(name string, values ...jen.Code) jen.Code {
	return jen.Line().Comment("// " + t.pkg.ConstName(name)).Line().Values(values...)
}

// matrix numbers the answers of a table by opcode and queue pair type.
func (t *postSendTable) matrix(cells [][]rules.Validity) []jen.Code {
	var rows []jen.Code
	for i, row := range cells {
		var numbers []jen.Code
		for _, v := range row {
			n, known := t.index[v]
			if !known {
				n = len(t.rows)
				t.index[v] = n
				t.rows = append(t.rows, v)
			}
			numbers = append(numbers, jen.Lit(n))
		}
		rows = append(rows, t.row(t.p.Opcodes[i], numbers...))
	}
	return rows
}

// position prints a function from an enumerator to its place in the tables, −1 for an unknown value.
func (t *postSendTable) position(name, typ string, enumerators []string, what string) {
	var cases []jen.Code
	for i, c := range enumerators {
		cases = append(cases, jen.Case(jen.Id(t.pkg.ConstName(c))).Block(jen.Return(jen.Lit(i))))
	}
	comment(t.f, fmt.Sprintf("%s is %s in the tables, or -1.", name, what))
	t.f.Func().Id(name).Params(jen.Id("v").Id(typ)).Int().Block(
		jen.Switch(jen.Id("v")).Block(cases...),
		jen.Return(jen.Lit(-1)),
	)
}
