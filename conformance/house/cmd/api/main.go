// SPDX-License-Identifier: BSD-2-Clause

// Command api prints what programs can name of packages, or what has changed of that since another tree.
//
//	go run ./conformance/house/cmd/api ./rdma
//	go run ./conformance/house/cmd/api -since ../older ./rdma ./rdma/cm
//
// A line begins with - where a name is gone, with ! where it is something else, with + where it is new.
package main

import (
	"flag"
	"fmt"
	"os"

	"github.com/goverbs/goverbs/conformance/house/api"
)

func main() {
	since := flag.String("since", "", "directory of the tree to compare with")
	flag.Parse()
	if err := run(*since, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(since string, patterns []string) error {
	now, err := api.List(".", patterns...)
	if err != nil {
		return err
	}
	if since == "" {
		for _, e := range now {
			fmt.Println(e.Name, e.Is)
		}
		return nil
	}
	before, err := api.List(since, patterns...)
	if err != nil {
		return err
	}
	for _, line := range api.Diff(before, now) {
		fmt.Println(line)
	}
	fmt.Printf("names that programs can use: %d before, %d now\n", len(before), len(now))
	return nil
}
