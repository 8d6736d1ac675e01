// SPDX-License-Identifier: BSD-2-Clause

// Package facts declares the subcommands of goverbs that the program goverbs-facts carries out. That one has the models
// of all releases, a reader of C and the generator, which are twice as large as all the rest.
package facts

// Layout shows structures in memory.
type Layout struct {
	Names []string `arg:"" optional:"" help:"Structures, in C or in Go: ibv_send_wr, ibv.SendWR. Without one, all."`
}

// Validity prints some tables of what is valid.
type Validity struct {
	Names []string `arg:"" optional:"" help:"Tables: post_send, modify_qp. Without one, their names and questions."`
}

// Tables prints all tables.
type Tables struct {
	HTML bool `name:"html" help:"A page for a browser, which needs nothing else."`
}

// ABI is what the command abicheck does.
type ABI struct {
	Verbose  bool   `short:"v" help:"List the differences that are fine, too."`
	Include  string `short:"I" help:"Directory with infiniband/verbs.h; without it, where the C compiler finds it."`
	CC       string `name:"cc" help:"C compiler, perhaps with arguments; without it, $$CC, cc, gcc or clang."`
	Libdirs  string `short:"L" help:"Directories of the libraries, with colons between them."`
	Only     string `enum:"headers,libraries,both" default:"both" help:"What to check: headers, libraries or both."`
	Packages string `help:"Only these packages, with commas between them: ibv,rdmacm."`
	Require  string `help:"Names that have to be checked, with commas between them: ibv,libibverbs.so.1."`
}

// Diff is what gen diff does.
type Diff struct {
	Old string `arg:"" help:"Recorded release: 56.1, librpma-1.2.0."`
	New string `arg:"" help:"Recorded release: 65.0, librpma-1.3.0."`
}

// Program is the name of the program that carries them out.
const Program = "goverbs-facts"
