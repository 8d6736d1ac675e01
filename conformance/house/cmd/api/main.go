// SPDX-License-Identifier: BSD-2-Clause

// Command api prints what programs can name of packages, or what has changed of that since another tree.
//
//	go run ./conformance/house/cmd/api ./rdma
//	go run ./conformance/house/cmd/api -since ../older ./rdma ./rdma/cm
//
// A line begins with - where a name is gone, with ! where it is something else, with + where it is new. With
// -listed FILE, it is an error if the file does not have one of these names.
package main

import (
	"flag"
	"fmt"
	"os"
	"strings"

	"github.com/goverbs/goverbs/conformance/house/api"
)

func main() {
	since := flag.String("since", "", "directory of the tree to compare with")
	listed := flag.String("listed", "", "file that has to name what has changed")
	flag.Parse()
	if err := run(*since, *listed, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(since, listed string, patterns []string) error {
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
	lines := api.Diff(before, now)
	for _, line := range lines {
		fmt.Println(line)
	}
	fmt.Printf("names that programs can use: %d before, %d now\n", len(before), len(now))
	if listed == "" {
		return nil
	}
	text, err := os.ReadFile(listed)
	if err != nil {
		return err
	}
	if missing := api.Unlisted(lines, string(text)); len(missing) > 0 {
		return fmt.Errorf("%s does not name these: say there what is new, and what to write in place of what is gone\n"+
			"%s", listed, strings.Join(missing, "\n"))
	}
	return nil
}
