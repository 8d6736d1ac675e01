// SPDX-License-Identifier: BSD-2-Clause

package suites

import (
	"embed"
	"fmt"
	"path"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/goverbs/goverbs/gen/rows"
)

//go:embed cases/*.txt
var casesFiles embed.FS

// Suite is what one file of cases says.
type Suite struct {
	Name     string
	Title    string         // what the page calls it
	Packages []Package      // what it needs of the archive
	Version  string         // what the page says, if it is not that of the first of Packages
	Build    string         // a script in build, which makes what the archive has only as source; or ""
	Builds   time.Duration  // how long Build may take
	Python   string         // the directory with tests of pyverbs; then Cases are empty, and the tests name themselves
	Rxe      bool           // whether it runs on Soft-RoCE of guests, too,
	Without  *regexp.Regexp // but for cases of these names, which would take too long there; or nil
	Network  bool           // whether its programs run in a network namespace, because they leave loopback out
	Limit    time.Duration  // for each case, or for each test of Python
	Skips    []int          // exit statuses with which programs say that they skip
	Again    string         // a case that fails and writes this runs again: a race of the suite's own; or ""
	Cases    []Case
}

// Package is a package of the archive.
type Package struct{ Name, Version string }

// Case is a program, or a server and its client, each with its arguments. {port} is a port of the case's own, {server}
// and {client} are the addresses of the two devices, {device} is their name, {gid} the index of the address among the
// device's, {temp} names a file for both that is not there yet, and {cache} is where Build puts things. NAME=VALUE in
// front is for the environment.
type Case struct {
	Name   string
	Server []string // empty for a program that runs alone
	Stays  bool     // the server does not end by itself
	Client []string
	Prints string // what the client's output has in it
}

// On says whether a case, or a module of pyverbs, runs on a kernel, or, for "", on the software device.
func (s *Suite) On(kernel, name string) bool {
	return kernel == "" || s.Rxe && (s.Without == nil || !s.Without.MatchString(name))
}

// Names are the suites there are, in the order in which they run.
var Names = []string{"ibverbs-utils", "rdmacm-utils", "pyverbs-44.0", "pyverbs-65.0", "perftest", "qperf", "ucx",
	"ucx-gtest", "libfabric", "fabtests", "openmpi", "fio", "dapl", "qemu"}

// Read reads the cases of a suite.
func Read(name string) (*Suite, error) {
	text, err := casesFiles.ReadFile(path.Join("cases", name+".txt"))
	if err != nil {
		return nil, fmt.Errorf("no suite %q; there are %s", name, strings.Join(Names, ", "))
	}
	return parse(name, "conformance/suites/cases/"+name+".txt", string(text))
}

func parse(name, file, text string) (*Suite, error) {
	f := rows.Read(file, text, rows.Form{Want: "case | server | client | what the client prints", Least: 1, Most: 4,
		Key: []int{0}, Directives: true})
	s := &Suite{Name: name, Limit: time.Minute}
	var server, client, prints string
	for _, row := range f.Rows {
		c := row.Columns
		if row.Directive {
			word, rest, _ := strings.Cut(c[0], " ")
			switch word {
			case "server":
				server = rest
			case "client":
				client = rest
			case "prints":
				prints = rest
			default:
				if err := s.directive(word, rest); err != nil {
					f.Fail(row.At, "%w", err)
				}
			}
			continue
		}
		one := Case{Name: c[0], Prints: prints}
		of, by := server, client
		if len(c) > 2 {
			of, by = c[1], c[2]
		}
		if len(c) == 4 {
			one.Prints = c[3]
		}
		one.Server = strings.Fields(strings.ReplaceAll(of, "{case}", c[0]))
		one.Client = strings.Fields(strings.ReplaceAll(by, "{case}", c[0]))
		if len(one.Server) > 0 && one.Server[0] == "&" {
			one.Stays, one.Server = true, one.Server[1:]
		}
		if len(one.Client) == 0 {
			f.Fail(row.At, "%s has no client, and no line @ client stands above", c[0])
		}
		s.Cases = append(s.Cases, one)
	}
	return s, f.Err()
}

func (s *Suite) directive(word, rest string) error {
	fields := strings.Fields(rest)
	switch {
	case word == "title" && rest != "":
		s.Title = rest
	case word == "version" && rest != "":
		s.Version = rest
	case word == "package" && len(fields) == 2:
		s.Packages = append(s.Packages, Package{fields[0], fields[1]})
	case word == "build" && len(fields) == 2:
		s.Build = fields[0]
		limit, err := time.ParseDuration(fields[1])
		s.Builds = limit
		return err
	case word == "rxe" && len(fields) != 1:
		s.Rxe = true
		if len(fields) == 0 {
			return nil
		}
		pattern, ok := strings.CutPrefix(rest, "without ")
		if !ok {
			return fmt.Errorf("@ rxe %s; want @ rxe, or @ rxe without REGEXP", rest)
		}
		without, err := regexp.Compile(pattern)
		s.Without = without
		return err
	case word == "network" && rest == "own":
		s.Network = true
	case word == "python" && len(fields) == 1:
		s.Python = rest
	case word == "limit" && len(fields) == 1:
		limit, err := time.ParseDuration(rest)
		s.Limit = limit
		return err
	case word == "again" && rest != "":
		s.Again = rest
	case word == "skips" && len(fields) > 0:
		for _, field := range fields {
			status, err := strconv.Atoi(field)
			if err != nil {
				return err
			}
			s.Skips = append(s.Skips, status)
		}
	default:
		return fmt.Errorf("@ %s %s; want @ title TEXT, @ package NAME VERSION, @ version TEXT, @ build SCRIPT LIMIT, "+
			"@ rxe, @ network own, @ python DIRECTORY, @ limit DURATION, @ skips STATUS..., @ again TEXT, "+
			"@ server COMMAND, @ client COMMAND or @ prints TEXT", word, rest)
	}
	return nil
}
