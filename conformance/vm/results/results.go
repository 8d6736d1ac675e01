// SPDX-License-Identifier: BSD-2-Clause

// Package results has what providers answered when it was measured, one file for each question and kernel:
//
//	create_qp-KERNEL.csv   which queue pairs can be created: type, 0 or the errno's name
//	post_send-KERNEL.csv   what becomes of every opcode with every queue pair and flag, posted with ibv_post_send
//	wr_post-KERNEL.csv     the same through ibv_wr_*
//	modify_qp-KERNEL.csv   which transitions of a queue pair pass, with and without which attributes
//	post_recv-KERNEL.csv   in which states receives can be posted, and what comes of them
//	unsupported-KERNEL.csv what verbs answer that Soft-RoCE or the guest's library lacks, and
//	                       whether errors.Is finds ErrNotSupported
//	control-KERNEL.csv     what each control verb answers where it works, and to each failure; those that
//	                       cannot be provoked, and why
//	events-KERNEL.csv      which asynchronous events come of what, and which cannot come
//	removed-KERNEL.csv     what becomes of a device that is taken away while it is open
//	doctor-KERNEL.csv      faults injected into a host, whether goverbs doctor names each, nothing else with it, and
//	                       whether its remedy mends it; doctor-pair-KERNEL.csv has those between two hosts
//	mistakes-KERNEL.csv    what comes of posting what is wrong, and what a checked queue of package rdma says instead
//	unreliable-KERNEL.csv  what comes of messages of UC and UD that the receiver cannot take
//	query_qp-KERNEL.csv    the attributes that ibv_query_qp returns, by state and after traffic
//	grh-KERNEL.csv         fields of the header in front of a datagram
//	explained-KERNEL.csv   the cause that goverbs trace explain names for each fault, and what it was shown
//	soft.txt               where the software device answers otherwise, and why; its answers are not recorded, but
//	                       measured whenever tests run
//	source-KERNEL.txt      versions of the kernel and the library that were measured
//
// Names are C's without the prefix that they share; flags are joined by | or none; post is 0 or the errno's name;
// bad_wr is the place of the refused work request; opcodes that C has no name for are numbers; none stands where
// nothing came, and - for a field that is undefined. data is ok when the bytes are where the opcode should have brought
// them, wrong when they are not, none when nothing was changed, and - when the opcode moves none.
//
// The files of kernels are written by measuring again (make measure), never by hand.
package results

import (
	"embed"
	"encoding/csv"
	"errors"
	"fmt"
	"io/fs"
	"strings"
)

//go:embed *.csv
var files embed.FS

// Table is a measured table: its columns, the first Keys of which tell rows apart, and its rows.
type Table struct {
	Columns []string
	Keys    int
	Rows    [][]string
}

// Read gives the recorded table of that file; ok is false when nothing was recorded.
func Read(name string, keys int) (table Table, ok bool, err error) {
	f, err := files.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return Table{}, false, nil
	}
	if err != nil {
		return Table{}, false, err
	}
	defer f.Close()
	all, err := csv.NewReader(f).ReadAll()
	if err != nil {
		return Table{}, false, fmt.Errorf("%s: %w", name, err)
	}
	if len(all) == 0 {
		return Table{}, false, fmt.Errorf("%s is empty", name)
	}
	return Table{Columns: all[0], Keys: keys, Rows: all[1:]}, true, nil
}

// Encode writes the table as CSV.
func (t Table) Encode() []byte {
	var b strings.Builder
	w := csv.NewWriter(&b)
	w.Write(t.Columns)
	w.WriteAll(t.Rows) // a strings.Builder takes everything
	return []byte(b.String())
}

// Differences tells each cell in which a table measured now differs from the recorded one, and each row that only one
// of them has.
func Differences(recorded, now Table) (all []string) {
	if strings.Join(recorded.Columns, ",") != strings.Join(now.Columns, ",") {
		return []string{fmt.Sprintf("columns: recorded %v, measured %v", recorded.Columns, now.Columns)}
	}
	key := func(row []string) string { return strings.Join(row[:now.Keys], " ") }
	measured := map[string][]string{}
	for _, row := range now.Rows {
		measured[key(row)] = row
	}
	for _, row := range recorded.Rows {
		got, ok := measured[key(row)]
		if !ok {
			all = append(all, fmt.Sprintf("%s: recorded, but not measured", key(row)))
			continue
		}
		delete(measured, key(row))
		for i := now.Keys; i < len(row); i++ {
			if row[i] != got[i] {
				all = append(all, fmt.Sprintf("%s: %s: recorded %s, measured %s", key(row), now.Columns[i], row[i],
					got[i]))
			}
		}
	}
	for _, row := range now.Rows {
		if _, ok := measured[key(row)]; ok {
			all = append(all, fmt.Sprintf("%s: measured, but not recorded", key(row)))
		}
	}
	return all
}
