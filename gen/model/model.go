// SPDX-License-Identifier: BSD-2-Clause

// Package model is what one release of a project says, as plain data: every structure, union, enum, constant, function,
// man-page table and exported symbol that the generator knows. It imports nothing of this module. A model is recorded
// from real headers, pages and libraries by gen/parse, gen/tables and gen/symbols, committed as JSON under
// headers/models, diffed on a header bump, and read by every emitter and check.
package model

// Release is one release of a project.
type Release struct {
	Project string   `json:"project"` // "rdma-core"
	Name    string   `json:"release"` // "65.0"
	Targets []string `json:"targets"` // the GOARCH values it was read for, the default target first
	Headers []Header `json:"headers"`
	Tables  []Table  `json:"tables,omitempty"`
	Flags   []Flag   `json:"flags,omitempty"`
	Unread  []string `json:"unread,omitempty"` // headers that the release installs and no package is made of
	// Libraries are the shared libraries, and what each exports.
	Libraries []Library `json:"libraries,omitempty"`
	// StandIns are the man pages and libraries that could not be had, and the release that was read instead of each.
	StandIns map[string]string `json:"stand_ins,omitempty"`
}

// String is how messages name the release: rdma-core 65.0.
func (r *Release) String() string { return r.Project + " " + r.Name }

// ReleaseOf is the release that a man page or library was read of: this one, unless another's stood in for it.
func (r *Release) ReleaseOf(file string) string {
	if other := r.StandIns[file]; other != "" {
		return other
	}
	return r.Name
}

// Header holds the declarations of one header file, each kind in the order of the file.
type Header struct {
	Name string `json:"name"` // as written between < and >: "infiniband/verbs.h"
	// Support marks a header of the C library or the kernel. Of such a header only the declarations
	// that a public header needs are recorded, and none of its functions and macros.
	Support bool     `json:"support,omitempty"`
	Records []Record `json:"records,omitempty"`
	Enums   []Enum   `json:"enums,omitempty"`
	Macros  []Macro  `json:"macros,omitempty"`
	Funcs   []Func   `json:"funcs,omitempty"`
	// FuncTypes are the typedefs of functions' types, which parameters point to.
	FuncTypes []Func `json:"func_types,omitempty"`
}

// RecordKind tells how the members of a Record share its bytes.
type RecordKind string

const (
	Struct     RecordKind = "struct"
	Union      RecordKind = "union"
	Incomplete RecordKind = "incomplete" // declared, never defined: only pointers to it exist
	Opaque     RecordKind = "opaque"     // a typedef of the C library of which only size and alignment matter
)

// Record is a structure, a union, or a type of which only size and alignment are known.
type Record struct {
	Kind   RecordKind `json:"kind"`
	Tag    string     `json:"tag,omitempty"` // "ibv_wc"; empty when defined in place without a tag
	Size   Per        `json:"size"`          // bytes
	Align  Per        `json:"align"`         // bytes
	Packed bool       `json:"packed,omitempty"`
	Man    string     `json:"man,omitempty"` // the page that explains it: "ibv_poll_cq.3"
	Fields []Field    `json:"fields,omitempty"`
}

// CName is how C spells the type: "struct ibv_wc", "union ibv_gid", "pthread_mutex_t".
func (r *Record) CName() string {
	switch r.Kind {
	case Opaque:
		return r.Tag
	case Union:
		return "union " + r.Tag
	default:
		return "struct " + r.Tag
	}
}

// Field is a member of a Record. Exactly one of Type, Record and Func says what it is.
type Field struct {
	Name   string  `json:"name,omitempty"` // empty for an unnamed structure or union
	Type   string  `json:"type,omitempty"` // C spelling that ParseType reads: "struct ibv_qp *", "uint8_t[16]"
	Record *Record `json:"record,omitempty"`
	Dims   []int64 `json:"dims,omitempty"` // array of Record or Func
	Func   *Proto  `json:"func,omitempty"` // pointer to a function: a slot
	Offset Per     `json:"offset"`         // bytes from the start of the record that holds the field
	Size   Per     `json:"size"`           // bytes; 0 for a flexible array
	Bits   *Bits   `json:"bits,omitempty"` // of a bitfield; Offset and Size are those of the bytes that it touches
}

// Bits is the place of a bitfield. C allocates the bits of a byte from the lowest on where the machine is
// little-endian, and from the highest on where it is big-endian; counted in that order, all targets agree.
type Bits struct {
	First Per   `json:"first"` // from the start of the record that holds the field
	Width int64 `json:"width"`
}

// MaxSize is how many bytes a record or an array may have: packages of layouts compile for machines of 32 bits, too.
const MaxSize = 1<<31 - 1

// Enum is an enumeration; Tag is empty for an untagged one.
type Enum struct {
	Tag         string       `json:"tag,omitempty"`
	Size        int64        `json:"size"`             // bytes
	Signed      bool         `json:"signed,omitempty"` // has a negative enumerator
	Man         string       `json:"man,omitempty"`
	Enumerators []Enumerator `json:"enumerators"`
}

// Holds reports whether the enum's type holds a value.
func (e *Enum) Holds(v Int) bool { return v.fits(e.Size, e.Signed) }

// Enumerator is one name of an Enum.
type Enumerator struct {
	Name  string `json:"name"`
	Value Int    `json:"value"`
	Shift bool   `json:"shift,omitempty"` // the header writes it with <<, which marks a flag
}

// MacroKind tells what a macro is for.
type MacroKind string

const (
	Constant MacroKind = "constant" // has a value
	Alias    MacroKind = "alias"    // another name for a tag, an enumerator or a function
	FuncLike MacroKind = "function" // takes parameters
	Text     MacroKind = "text"     // anything else
)

// Macro is a #define. Include guards and other empty ones are not recorded.
type Macro struct {
	Name   string    `json:"name"`
	Kind   MacroKind `json:"kind"`
	Value  *Int      `json:"value,omitempty"`  // Constant
	Type   string    `json:"type,omitempty"`   // Constant: the C type of the value
	Target string    `json:"target,omitempty"` // Alias: the name it stands for
	Params []string  `json:"params,omitempty"` // FuncLike
}

// Proto is the type of a function.
type Proto struct {
	Result   string  `json:"result"`
	Params   []Param `json:"params"`
	Variadic bool    `json:"variadic,omitempty"`
}

// Param is a parameter. Func is set instead of Type where the parameter points to a function.
type Param struct {
	Name string `json:"name,omitempty"`
	Type string `json:"type,omitempty"`
	Func *Proto `json:"func,omitempty"`
}

// Func is a function that a header declares (extern) or defines (inline).
type Func struct {
	Name string `json:"name"`
	Man  string `json:"man,omitempty"`
	Proto
	Inline *Inline `json:"inline,omitempty"` // nil for an extern function
}

// InlineKind tells how an inline function does its work.
type InlineKind string

const (
	// Slot: calls one function pointer of an object it was given, with no check: qp->wr_start(qp).
	Slot InlineKind = "slot"
	// ContextOp: the same through context->ops: qp->context->ops.post_send(…).
	ContextOp InlineKind = "context op"
	// ExtendedOp: through struct verbs_context, after checking that the library's structure is long enough and the slot
	// is set; Absent says what happens otherwise.
	ExtendedOp InlineKind = "extended op"
	// Call: calls an extern function and adds arguments, such as the size of a structure.
	Call InlineKind = "call"
	// Compute: arithmetic or a cast; calls nothing.
	Compute InlineKind = "compute"
	// Logic: anything else; the fields that could be read are still filled in, and it is written by hand in Go.
	Logic InlineKind = "logic"
)

// Inline is what an inline function does.
type Inline struct {
	Kind InlineKind `json:"kind"`
	// how C gets from a parameter to the structure with the slot: "qp->context"
	Object string   `json:"object,omitempty"`
	Struct string   `json:"struct,omitempty"` // structure that holds the slot: "verbs_context"
	Slot   string   `json:"slot,omitempty"`   // its member: "create_qp_ex"
	Guard  string   `json:"guard,omitempty"`  // member that bounds the structure's size: "verbs_context.sz"
	Absent string   `json:"absent,omitempty"` // errno when the slot is missing: "EOPNOTSUPP"
	Errors Errors   `json:"errors,omitempty"` // how the missing slot is reported
	Calls  []string `json:"calls,omitempty"`  // extern and inline functions it calls
	Args   []string `json:"args,omitempty"`   // arguments of the slot or call, in C
}

// Errors is a return convention: how a function tells that it failed.
type Errors string

const (
	ReturnsErrno Errors = "returns errno" // 0 or a positive errno
	NullErrno    Errors = "NULL, errno"   // NULL, and errno is set
)

// Table is a table of a man page: rows of named cells.
type Table struct {
	Name    string     `json:"name"` // "post_send"
	Page    string     `json:"page"` // "ibv_post_send.3"
	Columns []string   `json:"columns"`
	Rows    []TableRow `json:"rows"`
}

// TableRow is one row of a Table; Cells are in the order of its Columns: "yes" or "no", or the page's words.
type TableRow struct {
	Name  string   `json:"name"`
	Cells []string `json:"cells"`
}

// Flag is the rule that a man page states for one flag. An empty list means that the page names no limit.
type Flag struct {
	Name       string   `json:"name"` // "IBV_SEND_FENCE"
	Page       string   `json:"page"`
	QPTypes    []string `json:"qp_types,omitempty"`   // valid only on these
	Opcodes    []string `json:"opcodes,omitempty"`    // valid only with these
	Capability string   `json:"capability,omitempty"` // valid only when this device attribute says so
	// has an effect only when the queue pair was created with sq_sig_all = 0
	SigAll bool `json:"sig_all,omitempty"`
}
