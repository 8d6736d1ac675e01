// SPDX-License-Identifier: BSD-2-Clause

package pcap

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
)

var errShared = errors.New("another process writes the file; %p in the name stands for the process ID")

// Create opens a file for a capture, which only its owner reads. What was in it is gone. %p in the name is the ID of
// the process. On Linux it refuses a link, a file or FIFO of another user, and a file that another process captures to.
func Create(name string) (*os.File, error) {
	name = strings.ReplaceAll(name, "%p", strconv.Itoa(os.Getpid()))
	f, err := open(name)
	if err != nil {
		return nil, fmt.Errorf("create: %q: %w", name, errors.Unwrap(err)) // without the PathError, whose name is not quoted
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
