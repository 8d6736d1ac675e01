// SPDX-License-Identifier: BSD-2-Clause

package parse

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"modernc.org/cc/v4"
	"modernc.org/token"

	"github.com/goverbs/goverbs/gen/model"
)

// reader converts the syntax tree of one target to model headers.
type reader struct {
	src     Source
	target  string
	ast     *cc.AST
	headers []model.Header
	index   map[string]int // header name → index in headers

	order    []string                // tagged records in the order of their definition
	records  map[string]*located     // by C name: "struct ibv_wc", "pthread_mutex_t"
	enums    map[string]*locatedEnum // by tag
	allEnums []*locatedEnum          // including untagged ones, in the order of their definition
	specs    map[cc.Type]*cc.StructOrUnionSpecifier
	isConst  map[*cc.Declarator]bool // members and parameters whose type is const at its base
	used     []string                // records and enums used by public declarations, in order of first use
	usedIn   map[string]string       // used type → the header that uses it first
	opaques  map[string]*cc.Declarator
	inlines  []inlineBody
	guards   map[string]string // header → the macro of its include guard, or ""

	enumOf      map[*cc.Enumerator]*locatedEnum
	enumerators map[*cc.Enumerator]number // values computed so far
	constants   map[string]cc.ExpressionNode
	inParam     map[*cc.DirectDeclarator]bool                 // declarators of parameters
	ofRecord    map[*cc.AttributeSpecifier]bool               // attributes of structures and unions
	ofMember    map[*cc.AttributeSpecifier]bool               // attributes of their members
	trailing    map[*cc.Declarator]*cc.AttributeSpecifierList // attributes that follow a member's declarator
}

type located struct {
	header string
	public bool
	spec   *cc.StructOrUnionSpecifier
	done   bool
}

type locatedEnum struct {
	header    string
	public    bool
	spec      *cc.EnumSpecifier
	typ       number // its integer type; bits is 0 until it is computed
	computing bool
}

func newReader(src Source, target string, ast *cc.AST) *reader {
	r := &reader{
		src: src, target: target, ast: ast,
		index:   map[string]int{},
		records: map[string]*located{},
		enums:   map[string]*locatedEnum{},
		specs:   map[cc.Type]*cc.StructOrUnionSpecifier{},
		usedIn:  map[string]string{},
		opaques: map[string]*cc.Declarator{},
		isConst: map[*cc.Declarator]bool{},
		guards:  map[string]string{},

		enumOf:      map[*cc.Enumerator]*locatedEnum{},
		enumerators: map[*cc.Enumerator]number{},
		constants:   map[string]cc.ExpressionNode{},
		inParam:     map[*cc.DirectDeclarator]bool{},
		ofRecord:    map[*cc.AttributeSpecifier]bool{},
		ofMember:    map[*cc.AttributeSpecifier]bool{},
		trailing:    map[*cc.Declarator]*cc.AttributeSpecifierList{},
	}
	for _, name := range src.Headers {
		r.index[name] = len(r.headers)
		r.headers = append(r.headers, model.Header{Name: name})
	}
	return r
}

// read makes two passes over the translation unit: the first finds the definitions, the second records them.
func (r *reader) read() error {
	if err := r.findAll(); err != nil {
		return err
	}
	for _, name := range r.order {
		if at := r.records[name]; at != nil && at.public {
			if err := r.recordTagged(name); err != nil {
				return err
			}
		}
	}
	if err := r.readEnums(); err != nil {
		return err
	}
	for tu := r.ast.TranslationUnit; tu != nil; tu = tu.TranslationUnit {
		if err := r.readDeclaration(tu.ExternalDeclaration); err != nil {
			return err
		}
	}
	if err := r.readMacros(); err != nil {
		return err
	}
	return r.recordUsed()
}

// findAll finds all definitions.
func (r *reader) findAll() error {
	for tu := r.ast.TranslationUnit; tu != nil; tu = tu.TranslationUnit {
		if tu.ExternalDeclaration.Position().Filename == constantsSource {
			r.findConstant(tu.ExternalDeclaration)
		} else if err := r.findDefinitions(tu.ExternalDeclaration); err != nil {
			return err
		}
	}
	return nil
}

// where returns the header of a position, as written in an #include, and whether it is public. It rejects an unlisted
// header of the project, so that new headers are noticed.
func (r *reader) where(pos token.Position) (name string, public bool, err error) {
	dir, rest, ok := strings.Cut(path.Clean(pos.Filename), "/")
	switch {
	case ok && dir == includeDir:
		if r.foreign(rest) {
			return rest, false, nil
		}
		if !slices.Contains(r.src.Headers, rest) {
			return "", false, fmt.Errorf("%s: header %s is not listed as a public header; add it to "+
				"gen/rules/packages.go", r.pos(pos), rest)
		}
		return rest, true, nil
	case ok && dir == shimDir:
		return rest, false, nil
	}
	return "", false, nil
}

// foreign reports whether a header belongs to another project. Its declarations are in that project's model.
func (r *reader) foreign(header string) bool {
	p := r.src.of(header)
	return p != nil && p.Name != r.src.project()
}

// pos formats a position for errors, relative to the user's include directory.
func (r *reader) pos(p token.Position) string {
	if rest, ok := strings.CutPrefix(p.Filename, includeDir+"/"); ok {
		return fmt.Sprintf("%s:%d", path.Join(r.src.Name, rest), p.Line)
	}
	if rest, ok := strings.CutPrefix(p.Filename, shimDir+"/"); ok {
		return fmt.Sprintf("headers/shim/%s:%d", rest, p.Line)
	}
	return fmt.Sprintf("%s:%d", p.Filename, p.Line)
}

func (r *reader) header(name string, public bool) *model.Header {
	i, ok := r.index[name]
	if !ok {
		i = len(r.headers)
		r.index[name] = i
		r.headers = append(r.headers, model.Header{Name: name, Support: !public})
	}
	return &r.headers[i]
}

// markUsed records that a public declaration of the header uses a record or an enum.
func (r *reader) markUsed(name, header string) {
	if _, ok := r.usedIn[name]; !ok {
		r.usedIn[name] = header
		r.used = append(r.used, name)
	}
}

// findDefinitions finds every structure, union, enum and opaque typedef in a declaration, including nested ones.
func (r *reader) findDefinitions(d *cc.ExternalDeclaration) error {
	var err error
	fail := func(e error) bool {
		if err == nil {
			err = e
		}
		return false
	}
	walk(d, func(n cc.Node) bool {
		switch n := n.(type) {
		case *cc.CompoundStatement:
			return false // definitions in function bodies are local
		case *cc.StructDeclaration:
			walk(n, func(inner cc.Node) bool {
				if a, ok := inner.(*cc.AttributeSpecifier); ok {
					r.ofMember[a] = true
				}
				return true
			})
			for l := n.StructDeclaratorList; l != nil; l = l.StructDeclaratorList {
				r.isConst[l.StructDeclarator.Declarator] = constList(n.SpecifierQualifierList)
				if l.StructDeclaratorList == nil && l.StructDeclarator.Declarator != nil {
					r.trailing[l.StructDeclarator.Declarator] = n.AttributeSpecifierList
				}
			}
		case *cc.DirectDeclarator:
			if n.AssignmentExpression == nil && n.IdentifierList == nil {
				return true
			}
			if _, public, e := r.where(n.Position()); e != nil || !public {
				return e == nil || fail(e)
			}
			if n.IdentifierList != nil {
				return fail(fmt.Errorf("%s: %s: a function without parameter types; write them in its "+
					"brackets", r.pos(n.Position()), declared(n)))
			}
			if e := r.checkLength(n); e != nil {
				return fail(e)
			}
		case *cc.ParameterDeclaration:
			r.isConst[n.Declarator] = constSpecifiers(n.DeclarationSpecifiers)
			for d := n.Declarator; d != nil; d = nil {
				for l := d.DirectDeclarator; l != nil; l = l.DirectDeclarator {
					r.inParam[l] = true
				}
			}
		case *cc.StructOrUnionSpecifier:
			if n.Case != cc.StructOrUnionSpecifierDef {
				return true
			}
			r.specs[n.Type()] = n
			for _, list := range []*cc.AttributeSpecifierList{n.AttributeSpecifierList, n.AttributeSpecifierList2} {
				for ; list != nil; list = list.AttributeSpecifierList {
					r.ofRecord[list.AttributeSpecifier] = true
				}
			}
			tag := n.Token.SrcStr()
			if tag == "" {
				return true
			}
			header, public, e := r.where(n.Position())
			if e != nil {
				return fail(e)
			}
			name := recordKind(n) + " " + tag
			r.records[name] = &located{header: header, public: public, spec: n}
			r.order = append(r.order, name)
		case *cc.AttributeSpecifier:
			if e := r.checkAttributes(n); e != nil {
				return fail(e)
			}
		case *cc.EnumSpecifier:
			if n.Case != cc.EnumSpecifierDef {
				return true
			}
			header, public, e := r.where(n.Position())
			if e != nil {
				return fail(e)
			}
			at := &locatedEnum{header: header, public: public, spec: n}
			r.allEnums = append(r.allEnums, at)
			for l := n.EnumeratorList; l != nil; l = l.EnumeratorList {
				r.enumOf[l.Enumerator] = at
			}
			if tag := n.Token2.SrcStr(); tag != "" {
				r.enums[tag] = at
			}
		}
		return true
	})
	return err
}

func recordKind(n *cc.StructOrUnionSpecifier) string {
	if n.StructOrUnion.Case == cc.StructOrUnionUnion {
		return "union"
	}
	return "struct"
}

// readDeclaration records the functions of a declaration, and rejects unsupported ones.
func (r *reader) readDeclaration(d *cc.ExternalDeclaration) error {
	if d.Case == cc.ExternalDeclarationFuncDef {
		def := d.FunctionDefinition
		header, public, err := r.where(def.Declarator.Position())
		if err != nil || !public {
			return err
		}
		return r.recordFunc(header, def.Declarator, def.CompoundStatement)
	}
	if d.Case != cc.ExternalDeclarationDecl || d.Declaration == nil {
		return nil
	}
	for l := d.Declaration.InitDeclaratorList; l != nil; l = l.InitDeclaratorList {
		decl := l.InitDeclarator.Declarator
		header, public, err := r.where(decl.Position())
		if err != nil {
			return err
		}
		switch {
		case decl.IsTypename():
			if public {
				if err := r.recordFuncType(header, decl); err != nil {
					return err
				}
			}
		case !public:
		case decl.Type().Kind() == cc.Function:
			if err := r.recordFunc(header, decl, nil); err != nil {
				return err
			}
		case decl.IsStatic(): // each file that includes the header has its own
		default:
			return fmt.Errorf("%s: %s: a variable (%s) is not supported", r.pos(decl.Position()),
				decl.Name(), decl.Type())
		}
	}
	return nil
}

// recordFuncType records a function typedef; other typedefs are not supported.
func (r *reader) recordFuncType(header string, decl *cc.Declarator) error {
	t, ok := decl.Type().(*cc.FunctionType)
	if !ok {
		return fmt.Errorf("%s: %s: a typedef is not supported", r.pos(decl.Position()), decl.Name())
	}
	proto, err := r.proto(header, t)
	if err != nil {
		return fmt.Errorf("%s: %s: %w", r.pos(decl.Position()), decl.Name(), err)
	}
	h := r.header(header, true)
	h.FuncTypes = append(h.FuncTypes, model.Func{Name: decl.Name(), Proto: *proto})
	return nil
}

// recordFunc records a function. A repeated declaration is ignored.
func (r *reader) recordFunc(header string, decl *cc.Declarator, body *cc.CompoundStatement) error {
	t, ok := decl.Type().(*cc.FunctionType)
	if !ok {
		return fmt.Errorf("%s: %s: not a function type: %s", r.pos(decl.Position()), decl.Name(), decl.Type())
	}
	proto, err := r.proto(header, t)
	if err != nil {
		return fmt.Errorf("%s: %s: %w", r.pos(decl.Position()), decl.Name(), err)
	}
	h := r.header(header, true)
	i := slices.IndexFunc(h.Funcs, func(f model.Func) bool { return f.Name == decl.Name() })
	if i < 0 {
		i = len(h.Funcs)
		h.Funcs = append(h.Funcs, model.Func{Name: decl.Name(), Proto: *proto})
	}
	if body != nil {
		r.inlines = append(r.inlines, inlineBody{header: header, index: i, body: body})
	}
	return nil
}

// recordUsed records the types that public declarations use but no public header defines: from support headers, or as
// incomplete types.
func (r *reader) recordUsed() error {
	for i := 0; i < len(r.used); i++ { // recording a type may mark more types as used
		name := r.used[i]
		if tag, ok := strings.CutPrefix(name, "enum "); ok {
			at := r.enums[tag]
			if at == nil {
				return fmt.Errorf("%s: enum %s is used but never defined", r.usedIn[name], tag)
			}
			if !at.public && !r.foreign(at.header) {
				if err := r.recordEnum(at); err != nil {
					return err
				}
			}
			continue
		}
		if decl, ok := r.opaques[name]; ok {
			header, _, err := r.where(decl.Position())
			if err != nil {
				return err
			}
			h := r.header(header, false)
			t := decl.Type()
			h.Records = append(h.Records,
				model.Record{Kind: model.Opaque, Tag: name, Size: model.Same(t.Size()),
					Align: model.Same(int64(t.Align()))})
			continue
		}
		if at := r.records[name]; at != nil {
			if !at.done && !r.foreign(at.header) {
				if err := r.recordTagged(name); err != nil {
					return err
				}
			}
			continue
		}
		kind, tag, _ := strings.Cut(name, " ")
		if kind != "struct" {
			return fmt.Errorf("%s: %s is used but never defined", r.usedIn[name], name)
		}
		h := r.header(r.usedIn[name], true)
		h.Records = append(h.Records, model.Record{Kind: model.Incomplete, Tag: tag})
	}
	return nil
}
