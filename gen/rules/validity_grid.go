package rules

// Grids are the two tables of ibv_post_send: opcode by queue pair type, and send flag for each of them.
func (p *PostSend) Grids() []*Grid {
	qpt := Dim{Param: "qpt", What: "queue pair type", Type: "enum ibv_qp_type", Names: p.QPTypes}
	op := Dim{Param: "op", What: "opcode", Type: "enum ibv_wr_opcode", Names: p.Opcodes}
	flag := Dim{Param: "flag", What: "send flag", Type: "enum ibv_send_flags", Flags: true}
	base := Grid{Package: "ibv", Release: p.Release, StandIns: p.StandIns, Pages: []string{p.Page}, Result: "Validity"}
	send, flags := base, base
	send.Name, send.Func = "post_send", "PostSendValidity"
	send.Question = "What does ibv_post_send take?"
	send.FuncDoc = "says whether ibv_post_send takes an opcode on a queue pair of a type."
	send.Dims = []Dim{qpt, op}
	send.Items = []Lookup{{Func: "PostSendQPTypes", Doc: "are the queue pair types on which ibv_post_send takes an opcode, for messages.", Dim: 0}}
	flags.Name, flags.Func, flags.First = "send_flags", "SendFlagValidity", "PostSendValidity"
	flags.Question = "Which send flags may an operation of ibv_post_send bear?"
	flags.FuncDoc = "says whether an operation may bear a send flag: exactly one flag, and the answer of PostSendValidity where the operation itself is not valid."
	for _, f := range p.Flags {
		flag.Names = append(flag.Names, f.Name)
	}
	flags.Dims = []Dim{qpt, op, flag}
	for t := range p.QPTypes {
		for o := range p.Opcodes {
			send.Cells = append(send.Cells, Cell{Validity: p.Cells[o][t]})
			for _, f := range p.Flags {
				flags.Cells = append(flags.Cells, Cell{Validity: f.Cells[o][t]})
			}
		}
	}
	return []*Grid{&send, &flags}
}
