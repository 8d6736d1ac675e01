// SPDX-License-Identifier: BSD-2-Clause

package stub

import (
	"fmt"
	"slices"
	"strings"

	"github.com/goverbs/goverbs/gen/model"
)

// objects are the structures with one instance in each device. Members that point to one of them are linked.
var objects = []string{
	"verbs_context", "ibv_device", "ibv_comp_channel", "ibv_pd", "ibv_cq", "ibv_cq_ex", "ibv_srq", "ibv_wq", "ibv_qp",
	"ibv_qp_ex",
	"ibv_mr", "ibv_mw", "ibv_ah", "ibv_xrcd", "ibv_td", "ibv_dm", "ibv_flow", "ibv_flow_action", "ibv_counters",
	"ibv_rwq_ind_table",
	"ibv_dmah", "mlx5dv_qp_ex", "efadv_qp", "efadv_cq", "rdma_event_channel", "rdma_cm_id",
}

// text generates C code from a release: a recorder for every slot and exported function, a device whose slots are the
// recorders, and a wrapper with uniform parameters for every function, which calls it like a C program.
type text struct {
	release   *model.Release
	records   map[string]*model.Record
	names     []string // by number: "ibv_context_ops.post_send", "ibv_create_qp"
	recorders strings.Builder
	links     strings.Builder
	places    strings.Builder
	calls     strings.Builder
	here      []string // objects that the release has
	err       error
}

// files returns the C files by name.
func files(r *model.Release) (map[string]string, []string, error) {
	t := &text{release: r, records: map[string]*model.Record{}}
	var includes strings.Builder
	for i := range r.Headers {
		h := &r.Headers[i]
		if !h.Support {
			fmt.Fprintf(&includes, "#include <%s>\n", h.Name)
		}
		for j := range h.Records {
			t.records[h.Records[j].Tag] = &h.Records[j]
		}
	}
	t.world()
	t.functions()
	world := t.worldType() + t.recorders.String() +
		"void stub_world_init(struct stub_world *w)\n{\n" + t.links.String() + "}\n\n" +
		"const struct stub_place stub_places[] = {\n" + t.places.String() +
		"\t{ \"buffers\", offsetof(struct stub_world, buffers), sizeof(((struct stub_world *)0)->buffers) },\n\t{ " +
		"0 }\n};\n\n" +
		"const uint64_t stub_world_size = sizeof(struct stub_world);\n"
	return map[string]string{
		"headers.h": includes.String(),
		"names.h":   fmt.Sprintf("enum { STUB_IDS = %d };\n", len(t.names)),
		"world.c":   "#include \"stub.h\"\n\n" + world,
		"calls.c":   "#include \"stub.h\"\n\n" + t.calls.String(),
	}, t.names, t.err
}

// Buffers of a device, for arguments that do not point to an object.
const (
	Buffers    = 16
	BufferSize = 2048
)

func (t *text) worldType() string {
	var b strings.Builder
	b.WriteString("struct stub_place { const char *name; uint64_t offset, size; };\n\nstruct stub_world {\n")
	b.WriteString("\tuint64_t front[128]; /* where newer releases have more members of verbs_context */\n")
	for _, tag := range t.here {
		aligned := " __attribute__((aligned(64)))"
		if tag == "verbs_context" {
			aligned = ""
		}
		fmt.Fprintf(&b, "\tstruct %s o_%[1]s%s;\n", tag, aligned)
	}
	fmt.Fprintf(&b, "\tuint8_t buffers[%d][%d] __attribute__((aligned(64)));\n};\n\n", Buffers, BufferSize)
	return b.String()
}

// world links the objects and fills their slots.
func (t *text) world() {
	for _, tag := range objects {
		if r := t.records[tag]; r != nil && r.Kind == model.Struct {
			t.here = append(t.here, tag)
		}
	}
	for _, tag := range t.here {
		fmt.Fprintf(&t.places, "\t{ %q, offsetof(struct stub_world, o_%[1]s), sizeof(struct %[1]s) },\n", tag)
		t.fill(t.records[tag], "w->o_"+tag)
	}
	t.places.WriteString("\t{ \"ibv_context\", offsetof(struct stub_world, o_verbs_context.context), sizeof(struct " +
		"ibv_context) },\n")
	t.links.WriteString("\tw->o_verbs_context.sz = sizeof(struct verbs_context);\n" +
		"\tw->o_verbs_context.context.abi_compat = __VERBS_ABI_IS_EXTENDED;\n")
}

func (t *text) fill(r *model.Record, path string) {
	for i := range r.Fields {
		f := &r.Fields[i]
		member := path + "." + f.Name
		switch {
		case f.Func != nil && len(f.Dims) == 0:
			id := t.recorder(r.Tag+"."+f.Name, f.Func)
			fmt.Fprintf(&t.links, "\t%s = (void *)recorder_%d;\n", member, id)
		case f.Record != nil && f.Record.Kind == model.Struct && len(f.Dims) == 0:
			if f.Name == "" {
				member = path
			}
			t.fill(f.Record, member)
		case f.Type != "":
			typ := t.parse(f.Type)
			kind, tag := typ.Tag()
			if kind != "struct" || len(typ.Dims) > 0 {
				continue
			}
			target := "o_" + tag
			if tag == "ibv_context" {
				target = "o_verbs_context.context"
			}
			switch {
			case typ.Pointers == 1 && (slices.Contains(t.here, tag) || tag == "ibv_context"):
				fmt.Fprintf(&t.links, "\t%s = &w->%s;\n", member, target)
			case typ.Pointers == 0 && t.records[tag] != nil:
				t.fill(t.records[tag], member)
			}
		}
	}
}

func (t *text) parse(spelled string) model.Type {
	typ, err := model.ParseType(spelled)
	if err != nil && t.err == nil {
		t.err = err
	}
	return typ
}

// recorder generates the function for a slot, once.
func (t *text) recorder(name string, p *model.Proto) int {
	if id := slices.Index(t.names, name); id >= 0 {
		return id
	}
	id := len(t.names)
	t.names = append(t.names, name)
	t.define(id, fmt.Sprintf("recorder_%d", id), "static ", name, p)
	return id
}

// functions generates the exported functions, and a way to call each function of the headers.
func (t *text) functions() {
	for _, h := range t.release.Headers {
		for i := range h.Funcs {
			f := &h.Funcs[i]
			if f.Inline == nil {
				id := len(t.names)
				t.names = append(t.names, f.Name)
				t.define(id, f.Name, "", f.Name, &f.Proto)
			}
			t.call(f)
		}
	}
}

// define generates a recorder. Its parameters are complete registers, regardless of the type, so that it records the
// upper bits if the machine's convention defines them.
func (t *text) define(id int, cname, storage, name string, p *model.Proto) {
	params, args := []string{}, []string{}
	add := func(spelled string) {
		params = append(params, fmt.Sprintf("uint64_t a%d", len(params)))
		args = append(args, fmt.Sprintf(spelled, len(args)))
	}
	for i, a := range p.Params {
		if a.Func != nil {
			t.fail("%s: parameter %d is a function", name, i)
			continue
		}
		switch typ := t.parse(a.Type); {
		case typ.Pointers > 0 || len(typ.Dims) > 0:
			add("a%d")
		case typ.Base == "_Bool":
			add("STUB_NUMBER(uint8_t, a%d)")
		default:
			add("STUB_NUMBER(" + typ.String() + ", a%d)")
		}
	}
	if p.Variadic { // followed by one more number, as these functions are called
		add("a%d")
	}
	if len(args) == 0 {
		params, args = []string{"void"}, []string{"0"}
	}
	result := t.parse(p.Result)
	call := fmt.Sprintf("stub_call(%d, %q, args, 0)", id, t.kinds(name, p))
	switch {
	case result.IsVoid():
	case result.Pointers > 0:
		call = fmt.Sprintf("return (%s)(uintptr_t)stub_call(%d, %q, args, (uintptr_t)stub_object)", result, id,
			t.kinds(name, p))
	default:
		call = fmt.Sprintf("return (%s)%s", result, call)
	}
	head := fmt.Sprintf("%s(%s)", result.Declare(cname), strings.Join(params, ", "))
	if storage == "" { // an exported function, declared by the header with its own types
		head = fmt.Sprintf("%s(%s)", result.Declare(fmt.Sprintf("exported_%d", id)), strings.Join(params, ", "))
		fmt.Fprintf(&t.recorders, "%s __asm__(%q);\n", head, cname)
	}
	fmt.Fprintf(&t.recorders, "%s%s\n{\n\tconst uint64_t args[] = { %s };\n\n\t%s;\n}\n\n", storage, head,
		strings.Join(args, ", "), call)
}

// kinds returns how each argument is recorded: see stub.h.
func (t *text) kinds(name string, p *model.Proto) string {
	lists := map[string]byte{"ibv_send_wr": 's', "ibv_recv_wr": 'r', "ibv_ops_wr": 'o'}
	k := make([]byte, len(p.Params))
	for i, a := range p.Params {
		typ := t.parse(a.Type)
		_, tag := typ.Tag()
		before := ""
		if i > 0 {
			before = p.Params[i-1].Name
		}
		switch {
		case typ.Pointers == 0 && len(typ.Dims) == 0:
			k[i] = 'v'
		case typ.Pointers == 1 && lists[tag] != 0:
			k[i] = lists[tag]
		case typ.Pointers == 2 && lists[tag] != 0 && i > 0 && k[i-1] == lists[tag]:
			k[i] = 'b'
		case typ.Pointers > 1:
			k[i] = 'a'
		case tag == "ibv_sge" && strings.HasPrefix(before, "num_sge"):
			k[i] = 'g'
		case tag == "ibv_data_buf" && before == "num_buf":
			k[i] = 'd'
		case tag == "ibv_qp_ex" && strings.HasPrefix(name, "ibv_qp_ex."):
			k[i] = 'q'
		case typ.Base == "char" && typ.Const:
			k[i] = 'c'
		case name == "ibv_qp_ex.wr_set_inline_data" && i == 1:
			k[i] = 'i'
		default:
			k[i] = 'p'
		}
	}
	if p.Variadic {
		k = append(k, 'v')
	}
	return string(k)
}

// call generates a wrapper that calls another function like a C program: through the inline code of the header, if any.
// A macro with the same name does not hide it.
func (t *text) call(f *model.Func) {
	args := make([]string, len(f.Params))
	for i, a := range f.Params {
		typ := t.parse(a.Type)
		cast := "(" + typ.Declare("") + ")"
		if len(typ.Dims) > 0 { // an array parameter is an address
			typ.Dims, typ.Pointers = nil, typ.Pointers+1
			cast = "(" + typ.String() + ")"
		}
		if typ.Pointers > 0 {
			cast += "(uintptr_t)"
		}
		args[i] = fmt.Sprintf("%sa[%d]", cast, i)
	}
	if f.Variadic {
		args = append(args, fmt.Sprintf("(long)a[%d]", len(args)))
	}
	call := fmt.Sprintf("(%s)(%s)", f.Name, strings.Join(args, ", "))
	switch result := t.parse(f.Result); {
	case result.IsVoid():
		call = "r[0] = 0;\n\t" + call
	case result.Pointers > 0:
		call = "r[0] = (uintptr_t)" + call
	default:
		call = "r[0] = (uint64_t)" + call
	}
	fmt.Fprintf(&t.calls,
		"void call_%s(const uint64_t *a, uint64_t *r);\nvoid call_%[1]s(const uint64_t *a, uint64_t *r)\n{\n"+
			"\t(void)a;\n\terrno = 0;\n\t%s;\n\tr[1] = errno;\n}\n\n",
		f.Name, call)
}

func (t *text) fail(format string, args ...any) {
	if t.err == nil {
		t.err = fmt.Errorf("stub: "+format, args...)
	}
}
