// SPDX-License-Identifier: BSD-2-Clause

// Package model describes one release of a project as plain data: the structures, unions, enums, constants, functions,
// man-page tables and exported symbols that the generator uses. It imports no other package of this module. gen/parse,
// gen/tables and gen/symbols record models from headers, man pages and libraries. Models are committed as JSON under
// headers/models, compared on a header bump, and read by every emitter and check.
package model

// Release is one release of a project.
type Release struct {
	Project string   `json:"project"` // "rdma-core"
	Name    string   `json:"release"` // "65.0"
	Targets []string `json:"targets"` // the GOARCH values that it was recorded for, the default target first
	Headers []Header `json:"headers"`
	Tables  []Table  `json:"tables,omitempty"`
	Flags   []Flag   `json:"flags,omitempty"`
	Unread  []string `json:"unread,omitempty"` // installed headers that no generated package covers
	// Libraries are the shared libraries with their exported symbols.
	Libraries []Library `json:"libraries,omitempty"`
	// StandIns maps unavailable man pages and libraries to the release that was read instead.
	StandIns map[string]string `json:"stand_ins,omitempty"`
}

// String returns the name of the release in messages: rdma-core 65.0.
func (r *Release) String() string { return r.Project + " " + r.Name }

// ReleaseOf returns the release that a man page or library comes from, according to StandIns.
func (r *Release) ReleaseOf(file string) string {
	if other := r.StandIns[file]; other != "" {
		return other
	}
	return r.Name
}

// Header holds the declarations of one header file. Each kind is in the order of the file.
type Header struct {
	Name string `json:"name"` // as written between < and >: "infiniband/verbs.h"
	// Support marks a header of the C library or the kernel. Only the declarations that a public header needs are
	// recorded, without functions and macros.
	Support bool     `json:"support,omitempty"`
	Records []Record `json:"records,omitempty"`
	Enums   []Enum   `json:"enums,omitempty"`
	Macros  []Macro  `json:"macros,omitempty"`
	Funcs   []Func   `json:"funcs,omitempty"`
	// FuncTypes are the function typedefs to which parameters point.
	FuncTypes []Func `json:"func_types,omitempty"`
}

// RecordKind describes how the members of a Record share its bytes.
type RecordKind string

const (
	Struct     RecordKind = "struct"
	Union      RecordKind = "union"
	Incomplete RecordKind = "incomplete" // declared, never defined: only pointers to it exist
	Opaque     RecordKind = "opaque"     // a typedef of the C library, of which only the size and alignment matter
)

// Record is a structure, a union, or a type of which only the size and alignment are known.
type Record struct {
	Kind   RecordKind `json:"kind"`
	Tag    string     `json:"tag,omitempty"` // "ibv_wc"; empty for an untagged type defined in place
	Size   Per        `json:"size"`          // bytes
	Align  Per        `json:"align"`         // bytes
	Packed bool       `json:"packed,omitempty"`
	Man    string     `json:"man,omitempty"` // the man page that documents it: "ibv_poll_cq.3"
	Fields []Field    `json:"fields,omitempty"`
}

// CName returns the C spelling of the type: "struct ibv_wc", "union ibv_gid", "pthread_mutex_t".
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

// Field is a member of a Record. Exactly one of Type, Record and Func is set.
type Field struct {
	Name   string  `json:"name,omitempty"` // empty for an unnamed structure or union
	Type   string  `json:"type,omitempty"` // C spelling that ParseType reads: "struct ibv_qp *", "uint8_t[16]"
	Record *Record `json:"record,omitempty"`
	Dims   []int64 `json:"dims,omitempty"` // array of Record or Func
	Func   *Proto  `json:"func,omitempty"` // pointer to a function: a slot
	Offset Per     `json:"offset"`         // bytes from the start of the record that holds the field
	Size   Per     `json:"size"`           // bytes; 0 for a flexible array
	Bits   *Bits   `json:"bits,omitempty"` // set for a bitfield; Offset and Size are of the bytes that it occupies
}

// Bits is the position of a bitfield. C allocates the bits of a byte from the lowest on little-endian machines, and
// from the highest on big-endian ones. Counted in that order, the position is the same on all targets.
type Bits struct {
	First Per   `json:"first"` // from the start of the record that holds the field
	Width int64 `json:"width"`
}

// MaxSize limits the size of a record or an array in bytes, since the generated types must also compile for 32-bit
// machines.
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
	Shift bool   `json:"shift,omitempty"` // written with << in the header, which marks a flag
}

// MacroKind describes the expansion of a macro.
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
	Target string    `json:"target,omitempty"` // Alias: the other name
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

// InlineKind classifies the bodies of inline functions.
type InlineKind string

const (
	// Slot: calls a function pointer of its argument without a check: qp->wr_start(qp).
	Slot InlineKind = "slot"
	// ContextOp: the same through context->ops: qp->context->ops.post_send(…).
	ContextOp InlineKind = "context op"
	// ExtendedOp: through struct verbs_context, after checking that the library's structure is long enough and the slot
	// is set; Absent is the result otherwise.
	ExtendedOp InlineKind = "extended op"
	// Call: calls an extern function with additional arguments, such as the size of a structure.
	Call InlineKind = "call"
	// Compute: arithmetic or a cast; calls nothing.
	Compute InlineKind = "compute"
	// Logic: anything else. Recognized fields are filled in, and the Go function is written by hand.
	Logic InlineKind = "logic"
)

// Inline describes the body of an inline function.
type Inline struct {
	Kind InlineKind `json:"kind"`
	// path from a parameter to the structure with the slot: "qp->context"
	Object string   `json:"object,omitempty"`
	Struct string   `json:"struct,omitempty"` // structure that holds the slot: "verbs_context"
	Slot   string   `json:"slot,omitempty"`   // its member: "create_qp_ex"
	Guard  string   `json:"guard,omitempty"`  // member that bounds the structure's size: "verbs_context.sz"
	Absent string   `json:"absent,omitempty"` // errno when the slot is missing: "EOPNOTSUPP"
	Errors Errors   `json:"errors,omitempty"` // how the missing slot is reported
	Calls  []string `json:"calls,omitempty"`  // extern and inline functions it calls
	Args   []string `json:"args,omitempty"`   // arguments of the slot or call, in C
}

// Errors is the error convention of a function.
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

// TableRow is a row of a Table. Cells are in the order of its Columns: "yes", "no", or the text of the page.
type TableRow struct {
	Name  string   `json:"name"`
	Cells []string `json:"cells"`
}

// Flag is the rule of a man page for one flag. An empty list means no limit.
type Flag struct {
	Name       string   `json:"name"` // "IBV_SEND_FENCE"
	Page       string   `json:"page"`
	QPTypes    []string `json:"qp_types,omitempty"`   // valid only on these
	Opcodes    []string `json:"opcodes,omitempty"`    // valid only with these
	Capability string   `json:"capability,omitempty"` // valid only if this device attribute allows it
	// has an effect only if the queue pair was created with sq_sig_all = 0
	SigAll bool `json:"sig_all,omitempty"`
}
