// SPDX-License-Identifier: BSD-2-Clause

// Package results holds the measured answers of providers, one file for each question and kernel:
//
//	create_qp-KERNEL.csv   queue pair types that can be created: type, 0 or the errno's name
//	post_send-KERNEL.csv   result of every opcode for each queue pair type and flag, posted with ibv_post_send
//	wr_post-KERNEL.csv     the same through ibv_wr_*
//	modify_qp-KERNEL.csv   state transitions that pass, with and without each attribute
//	post_recv-KERNEL.csv   states in which receives can be posted, and their completions
//	unsupported-KERNEL.csv errors of verbs that Soft-RoCE or the guest's library lacks, and whether errors.Is finds
//	                       ErrNotSupported
//	control-KERNEL.csv     result of each control verb on success and for each failure; failures that cannot be
//	                       provoked, with the reason
//	events-KERNEL.csv      causes of asynchronous events, and events that cannot occur
//	removed-KERNEL.csv     behavior of a device that is removed while it is open
//	doctor-KERNEL.csv      faults injected into a host, whether goverbs doctor reports exactly that fault, and whether
//	                       its remedy works; doctor-pair-KERNEL.csv has faults between two hosts
//	mistakes-KERNEL.csv    result of posting invalid requests, and the error of a checked queue of package rdma
//	unreliable-KERNEL.csv  fate of UC and UD messages that the receiver cannot take
//	query_qp-KERNEL.csv    attributes that ibv_query_qp returns, by state and after traffic
//	grh-KERNEL.csv         fields of the header before a datagram
//	explained-KERNEL.csv   the cause that goverbs trace explain reports for each fault, and its input
//	soft.txt               answers of the software device that differ, with reasons; its other answers are not recorded
//	                       but measured in each test run
//	native.txt             the same for package native, which uses Soft-RoCE without rdma-core
//	source-KERNEL.txt      versions of the measured kernel and library
//	siw-….csv, siw-….txt   create_qp, post_send, wr_post and source of Soft-iWARP; states to which its queue pairs can
//	                       be moved; siw-connection-KERNEL.csv: connections, their ends and failures
//
// Names are those of C without the common prefix; flags are joined by | or none; post is 0 or the errno's name; bad_wr
// is the index of the rejected work request; opcodes without a name in C are numbers; none means no result, and - an
// undefined field. data is ok when the bytes arrived where the opcode should put them, wrong when they did not, none
// when no memory changed, and - when the opcode moves no data.
//
// The files for kernels are written by make measure, those of Soft-iWARP by GOVERBS_MEASURE=1 make vm WHAT=siw, and
// none by hand.
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

// Table is a measured table. The first Keys columns identify a row.
type Table struct {
	Columns []string
	Keys    int
	Rows    [][]string
}

// Read returns the recorded table in a file. ok is false if there is no such file.
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

// Encode returns the table as CSV.
func (t Table) Encode() []byte {
	var b strings.Builder
	w := csv.NewWriter(&b)
	w.Write(t.Columns)
	w.WriteAll(t.Rows) // writing to a strings.Builder does not fail
	return []byte(b.String())
}

// Differences lists the cells in which a table that was measured now differs from the recorded one, and the rows that
// exist in only one of them.
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
