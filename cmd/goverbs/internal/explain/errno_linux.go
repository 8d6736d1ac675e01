// SPDX-License-Identifier: BSD-2-Clause

package explain

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/runtime"
)

// errnos explains an errno, a verb, or both in any order.
func errnos(words []string) (all All) {
	var number runtime.Errno
	verb := ""
	for _, word := range words {
		switch n := numbered(strings.ToUpper(word)); {
		case n != 0 && number == 0:
			number = n
		case n == 0 && verb == "" && functionCalled(strings.ToLower(word)) != nil:
			verb = strings.ToLower(word)
		default:
			return nil
		}
	}
	for _, r := range rdma.ErrnoReasons() {
		if number != 0 && r.Errno != number || verb != "" && !slices.Contains(r.Verbs, verb) {
			continue
		}
		name := strings.Join(r.Verbs, ", ")
		if verb != "" {
			name = verb
		}
		all = append(all, errnoOf(name, r.Errno, r.Reason, r.Source))
	}
	switch {
	case all != nil || number == 0:
	case verb != "":
		all = append(all, errnoOf(verb, number, "not documented for this verb; package rdma adds the reason if it "+
			"can, since it checks the arguments", ""))
	default:
		all = append(all, errnoOf("any call", number, "", ""))
	}
	return all
}

func errnoOf(verb string, number runtime.Errno, reason, source string) *Explanation {
	e := &Explanation{Kind: fmt.Sprintf("errno %d of %s", uint(number), verb), Name: unix.ErrnoName(number)}
	e.fact("meaning", number.Error())
	e.fact("reason", reason)
	e.fact("source", source)
	return e
}

// numbered returns the errno with a name or number, or 0.
func numbered(word string) runtime.Errno {
	for n := runtime.Errno(1); n < 200; n++ {
		if name := unix.ErrnoName(n); name != "" && (name == word || strconv.Itoa(int(n)) == word) {
			return n
		}
	}
	return 0
}
