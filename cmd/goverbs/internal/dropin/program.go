// SPDX-License-Identifier: BSD-2-Clause

package dropin

import (
	"bytes"
	"encoding/binary"
	"io"
	"os"
	"os/exec"
)

// Without says why a program of Linux runs without the libraries, or nothing: where the program is not found, whoever
// runs it says so, and an interpreter of a script is not looked at.
func Without(program string) string {
	path, err := exec.LookPath(program)
	if err != nil {
		return ""
	}
	info, err := os.Stat(path)
	if err != nil {
		return ""
	}
	switch {
	case changesUser(info):
		return "it changes its user or group (setuid), and the loader then takes no libraries from its caller"
	case static(path):
		return "it is linked statically"
	}
	return ""
}

// static says if a file is a program of ELF that asks for no loader.
func static(path string) bool {
	const (
		interpreter  = 3 // PT_INTERP
		fixed        = 2 // ET_EXEC
		independent  = 3 // ET_DYN, PIE: the loader itself as well
		wide         = 2 // ELFCLASS64
		bigEndian    = 2
		header, most = 64, 128
	)
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	b := make([]byte, header)
	if _, err := io.ReadFull(f, b); err != nil || !bytes.HasPrefix(b, []byte("\x7fELF")) {
		return false
	}
	order := binary.ByteOrder(binary.LittleEndian)
	if b[5] == bigEndian {
		order = binary.BigEndian
	}
	if kind := order.Uint16(b[16:]); kind != fixed && kind != independent {
		return false
	}
	at, size, n := int64(order.Uint32(b[28:])), int64(order.Uint16(b[42:])), int64(order.Uint16(b[44:]))
	if b[4] == wide {
		at, size, n = int64(order.Uint64(b[32:])), int64(order.Uint16(b[54:])), int64(order.Uint16(b[56:]))
	}
	for i := range min(n, most) {
		if _, err := f.ReadAt(b[:4], at+i*size); err != nil || order.Uint32(b) == interpreter {
			return false
		}
	}
	return true
}
