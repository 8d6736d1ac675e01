// SPDX-License-Identifier: BSD-2-Clause

package pcap

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
)

var errShared = errors.New("another process writes the file; use %p in the name, which becomes the process ID")

// Create opens a file for a capture and truncates it. Only its owner may read it. %p in the name is replaced with the
// process ID. On Linux, Create rejects symbolic links, files and FIFOs of other users, and files that another process
// captures to.
func Create(name string) (*os.File, error) {
	name = strings.ReplaceAll(name, "%p", strconv.Itoa(os.Getpid()))
	f, err := open(name)
	if err != nil {
		return nil, fmt.Errorf("create: %q: %w", name, errors.Unwrap(err)) // the PathError does not quote the name
	}
	info, err := f.Stat()
	if err == nil {
		err = own(f, info)
	}
	if err == nil && info.Mode().IsRegular() {
		err = f.Truncate(0)
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("create: %q: %w", name, err)
	}
	return f, nil
}
