// SPDX-License-Identifier: BSD-2-Clause

package parse

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"modernc.org/cc/v4"

	"github.com/goverbs/goverbs/gen/model"
)

// inlineBody is the body of an inline function that is not yet classified.
type inlineBody struct {
	header string
	index  int // index into the header's Funcs
	body   *cc.CompoundStatement
}

func (r *reader) readInlines() error {
	for _, in := range r.inlines {
		f := &r.header(in.header, true).Funcs[in.index]
		inline, err := r.classify(f, in.body)
		if err != nil {
			return fmt.Errorf("%s: %s: %w", r.pos(in.body.Position()), f.Name, err)
		}
		f.Inline = inline
	}
	return nil
}

// call is a call expression in C.
type call struct {
	callee string
	args   []string
}

// throughPointer reports whether the call goes through a function pointer in a structure: a slot.
func (c call) throughPointer() bool { return strings.ContainsAny(c.callee, ".>") }

// split splits "qp->context->ops.post_send" into the path to the structure and the name of the member.
func (c call) split() (object, member string) {
	i := strings.LastIndexAny(c.callee, ".>")
	return strings.TrimRight(c.callee[:i+1], "->."), c.callee[i+1:]
}

// guardShape matches the expansion of verbs_get_ctx_op, which returns the extended context, or NULL if the structure is
// too short to contain the member or the member is NULL.
var guardShape = regexp.MustCompile(`^\(\{struct (\w+)\*(\w+)=\w+\((.+?)\);` +
	`\(!\w+\|\|\(\w+->(\w+)<sizeof\(\*\w+\)-\(\(size_t\)&\(\(struct \w+\*\)0\)->(\w+)\)\)\|\|!\w+->(\w+)\)\?\(\(void\*\)0\):\w+;\}\)$`)

// guard is a match of guardShape.
type guard struct{ record, object, size, member string }

// contents is a summary of a function body.
type contents struct {
	statements   []string // except declarations
	declarations int
	slots        []call
	functions    []call
	guards       []guard
}

func readBody(body *cc.CompoundStatement) (contents, error) {
	var c contents
	for l := body.BlockItemList; l != nil; l = l.BlockItemList {
		switch item := l.BlockItem; {
		case item.Case == cc.BlockItemDecl && strings.Contains(text(item), "__func__"): // added by cc
			continue
		case item.Case == cc.BlockItemDecl:
			c.declarations++
		default:
			c.statements = append(c.statements, text(item))
		}
		if err := c.readCalls(l.BlockItem); err != nil {
			return c, err
		}
	}
	return c, nil
}

func (c *contents) readCalls(n cc.Node) error {
	var err error
	walk(n, func(n cc.Node) bool {
		switch n := n.(type) {
		case *cc.PrimaryExpression:
			if n.Case != cc.PrimaryExpressionStmt {
				return true
			}
			m := guardShape.FindStringSubmatch(text(n))
			if m == nil || m[5] != m[6] {
				err = fmt.Errorf("unsupported statement expression: %s", text(n))
				return false
			}
			c.guards = append(c.guards, guard{record: m[1], object: m[3], size: m[4], member: m[5]})
			return false
		case *cc.PostfixExpression:
			if n.Case != cc.PostfixExpressionCall {
				return true
			}
			made := call{callee: text(n.PostfixExpression)}
			for a := n.ArgumentExpressionList; a != nil; a = a.ArgumentExpressionList {
				made.args = append(made.args, text(a.AssignmentExpression))
			}
			if made.throughPointer() {
				c.slots = append(c.slots, made)
			} else {
				c.functions = append(c.functions, made)
			}
		}
		return true
	})
	return err
}

// calls returns the distinct names of the called functions.
func (c contents) calls() []string {
	var names []string
	for _, f := range c.functions {
		if !slices.Contains(names, f.callee) {
			names = append(names, f.callee)
		}
	}
	return names
}

// classify classifies an inline function.
func (r *reader) classify(f *model.Func, body *cc.CompoundStatement) (*model.Inline, error) {
	c, err := readBody(body)
	if err != nil {
		return nil, err
	}
	in := &model.Inline{Kind: model.Logic, Calls: c.calls()}
	single := len(c.statements) == 1 && c.declarations == 0
	switch {
	case len(c.guards) == 1 && len(c.slots) == 1:
		g := c.guards[0]
		_, member := c.slots[0].split()
		if member != g.member {
			return nil, fmt.Errorf("checks slot %s but calls %s", g.member, member)
		}
		in.Object, in.Struct, in.Slot, in.Guard, in.Args = g.object, g.record, member, g.record+"."+
			g.size, c.slots[0].args
		plain := false
		in.Absent, in.Errors, plain = absent(c.statements)
		if plain && len(c.functions) == 0 && c.declarations == 1 {
			in.Kind = model.ExtendedOp
		}
	case len(c.guards) > 0 || len(c.slots) > 1:
	case len(c.slots) == 1:
		object, member := c.slots[0].split()
		in.Slot, in.Args, in.Object = member, c.slots[0].args, object
		in.Struct, err = r.structAt(f, object)
		if err != nil {
			if single {
				return nil, err
			}
			in.Struct = "" // called through a local variable
		}
		if single && len(c.functions) == 0 {
			in.Kind = model.Slot
			if through, ok := strings.CutSuffix(object, "->ops"); ok {
				in.Kind, in.Object = model.ContextOp, through
			}
		}
	case len(c.functions) == 1 && single:
		in.Kind, in.Args = model.Call, c.functions[0].args
	case len(c.functions) == 0:
		in.Kind = model.Compute
	}
	return in, nil
}

var (
	returnsErrno = regexp.MustCompile(`^if\(!\w+\)return (E\w+);$`)
	setsErrno    = regexp.MustCompile(`^if\(!\w+\)\{errno=(E\w+);return\(\(void\*\)0\);\}$`)
	namesErrno   = regexp.MustCompile(`^if\(!\w+\)\{.*\b(E[A-Z]+);.*\}$`)
)

// absent parses the statement that follows a failed guard. plain means that the body consists only of the guard, this
// statement and the final return.
func absent(statements []string) (errno string, how model.Errors, plain bool) {
	others := 0
	for _, s := range statements {
		if m := returnsErrno.FindStringSubmatch(s); m != nil {
			errno, how = m[1], model.ReturnsErrno
		} else if m := setsErrno.FindStringSubmatch(s); m != nil {
			errno, how = m[1], model.NullErrno
		} else if m := namesErrno.FindStringSubmatch(s); m != nil {
			errno, how = m[1], model.ReturnsErrno
			others++
		} else if !strings.HasPrefix(s, "vctx=({") && !strings.HasPrefix(s, "return vctx->") {
			others++
		}
	}
	return errno, how, others == 0 && errno != ""
}

// structAt returns the tag of the structure that an expression like "qp->context->ops" denotes or points to.
func (r *reader) structAt(f *model.Func, path string) (string, error) {
	steps := strings.FieldsFunc(path, func(c rune) bool { return c == '-' || c == '>' || c == '.' })
	i := slices.IndexFunc(f.Params, func(p model.Param) bool { return p.Name == steps[0] })
	if i < 0 {
		return "", fmt.Errorf("%s does not start with a parameter", path)
	}
	spelled := f.Params[i].Type
	for step := 0; ; step++ {
		t, err := model.ParseType(spelled)
		if err != nil {
			return "", err
		}
		kind, tag := t.Tag()
		if kind != "struct" {
			return "", fmt.Errorf("%s: %s is not a structure", path, spelled)
		}
		if step == len(steps)-1 {
			return tag, nil
		}
		field := r.memberOf(tag, steps[step+1])
		if field == nil || field.Type == "" {
			return "", fmt.Errorf("%s: struct %s has no member %s of a named type", path, tag, steps[step+1])
		}
		spelled = field.Type
	}
}

func (r *reader) memberOf(tag, name string) *model.Field {
	for _, h := range r.headers {
		for _, rec := range h.Records {
			if rec.Tag == tag {
				for i := range rec.Fields {
					if rec.Fields[i].Name == name {
						return &rec.Fields[i]
					}
				}
			}
		}
	}
	return nil
}
