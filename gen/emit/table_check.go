// SPDX-License-Identifier: BSD-2-Clause

package emit

import "github.com/dave/jennifer/jen"

// check prints the function that checks a set of flags.
func (t *gridTable) check() {
	g := t.g
	if g.Check.Func == "" {
		return
	}
	last := len(g.Dims) - 1
	typ := t.goType(g.Dims[last].Type)
	v, flag, flags, rule, one, rest := jen.Id("v"), jen.Id("flag"), jen.Id("flags"), jen.Id("rule"), jen.Id("one"),
		jen.Id("rest")
	answer := func(of *jen.Statement) *jen.Statement { return of.Clone().Dot("Answer") }
	is := func(of *jen.Statement, name string) *jen.Statement { return answer(of).Op("==").Id(name) }
	validity := rule.Clone().Dot("Validity")

	comment(t.f, wrap(g.Check.Func+" "+g.Check.Doc+
		" If a flag breaks a rule, flag is that flag. Otherwise v is the least certain validity among the flags, "+
		"and flag is the flag that it belongs to. It does not allocate.")+"\n\n"+t.man())
	params := append(t.params(last), jen.Id("flags").Id(typ))
	t.f.Func().Id(g.Check.Func).Params(params...).Params(jen.Id("v").Id("Validity"), jen.Id("flag").Id(typ)).Block(
		jen.Id("always").Op(":=").Id(g.Check.Always).Call(t.arguments(last)...),
		v.Clone().Op("=").Id("always").Dot("Validity"),
		jen.If(jen.Id("lacks").Op(":=").Id("always").Dot(g.Check.AlwaysValue()).Op("&^").Add(flags),
			jen.Id("lacks").Op("!=").Lit(0)).Block(
			answer(v).Op("=").Id("AnswerNo"),
			jen.Return(v, jen.Id("lacks").Op("&").Op("-").Id("lacks")),
		),
		jen.For(rest.Clone().Op(":=").Add(flags), rest.Clone().Op("!=").Lit(0),
			rest.Clone().Op("&=").Add(rest).Op("-").Lit(1)).Block(
			one.Clone().Op(":=").Add(rest).Op("&").Op("-").Add(rest),
			rule.Clone().Op(":=").Id(g.Func).Call(append(t.arguments(last), one)...),
			jen.If(rule.Clone().Dot(g.Check.Needs).Op("&^").Add(flags).Op("!=").Lit(0)).Block(answer(rule).Op("=").Id("AnswerNo")),
			jen.Switch().Block(
				jen.Case(is(rule, "AnswerNo").Op("||").Add(is(rule, "AnswerNotInVerb"))).Block(jen.Return(validity,
					one)),
				jen.Case(flag.Clone().Op("==").Lit(0),
					is(rule, "AnswerUnspecified").Op("&&").Add(answer(v)).Op("!=").Id("AnswerUnspecified"),
					is(rule, "AnswerNeedsCapability").Op("&&").Add(is(v, "AnswerYes")),
				).Block(jen.List(v, flag).Op("=").List(validity, one)),
			),
		),
		jen.Return(v, flag),
	)
}
