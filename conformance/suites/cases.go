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

// Suite is the content of one file of cases.
type Suite struct {
	Name     string
	Title    string         // title on the page
	Packages []Package      // required Debian packages
	Version  string         // version on the page, if it is not that of the first of Packages
	Build    string         // optional: script in build for parts that Debian provides only as source
	Builds   time.Duration  // timeout of Build
	Python   string         // directory with pyverbs tests, which replace Cases
	Rxe      bool           // the suite also runs on Soft-RoCE in guests
	Without  *regexp.Regexp // optional: cases that take too long on Soft-RoCE
	Network  bool           // the programs run in a network namespace, since they ignore loopback
	Limit    time.Duration  // timeout of each case or Python test
	Skips    []int          // exit statuses that mean "skipped"
	Again    string         // optional: output of a known race in the suite, after which a failed case runs again
	Cases    []Case
}

// Package is a Debian package.
type Package struct{ Name, Version string }

// Case is a program, or a server and its client, with arguments. {port} is a port for the case, {server} and {client}
// are the addresses of the two devices, {device} is their name, {gid} the GID index of the address, {temp} an unused
// file name for both, and {cache} the directory of Build. NAME=VALUE before the program sets the environment.
type Case struct {
	Name   string
	Server []string // empty if there is no server
	Stays  bool     // the server does not exit by itself
	Client []string
	Prints string // text that the client must print
}

// On reports whether a case or pyverbs module runs on a kernel. The kernel "" stands for the software device.
func (s *Suite) On(kernel, name string) bool {
	return kernel == "" || s.Rxe && (s.Without == nil || !s.Without.MatchString(name))
}

// Names lists the suites in the order in which they run.
var Names = []string{"ibverbs-utils", "rdmacm-utils", "pyverbs-44.0", "pyverbs-65.0", "perftest", "qperf", "ucx",
	"ucx-gtest", "libfabric", "fabtests", "openmpi", "fio", "dapl", "qemu", "rdma-unit-test"}

// Read reads the cases of a suite.
func Read(name string) (*Suite, error) {
	text, err := casesFiles.ReadFile(path.Join("cases", name+".txt"))
	if err != nil {
		return nil, fmt.Errorf("unknown suite %q; use one of %s", name, strings.Join(Names, ", "))
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
