// SPDX-License-Identifier: BSD-2-Clause

// Command arrows prints how the files of packages use each other: what runs against the order in which the least does.
//
//	go run ./conformance/house/cmd/arrows ./rdma ./rdma/soft
//
// A room with few calls back can be read from the top; at each call back a reader has to know the callers of the code
// that comes next. Package order defines calls and arrows; rooms.txt has the limits.
package main

import (
	"flag"
	"fmt"
	"os"

	"github.com/goverbs/goverbs/conformance/house/order"
)

func main() {
	files := flag.Bool("files", false, "print the order of the files")
	arrows := flag.Bool("arrows", false, "print arrows (files that name anything of each other's) instead of calls")
	short := flag.Bool("short", false, "print one line a package")
	flag.Usage = func() {
		fmt.Fprintln(os.Stderr, "usage: arrows [-files] [-arrows] [-short] packages")
		flag.PrintDefaults()
	}
	flag.Parse()
	rooms, err := order.Load(".", flag.Args()...)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	for _, r := range rooms {
		fmt.Printf("%s: %d files; run back: %d of %d calls, %d of %d arrows\n",
			r.Path, len(r.Files), len(r.Calls.Back), r.Calls.All, len(r.Arrows.Back), r.Arrows.All)
		shown := r.Calls
		if *arrows {
			shown = r.Arrows
		}
		if *files {
			for _, f := range shown.Files {
				fmt.Println("  " + f)
			}
		}
		if !*short {
			for _, u := range shown.Back {
				fmt.Println("  " + u.String())
			}
		}
	}
}
