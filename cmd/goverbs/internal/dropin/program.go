// SPDX-License-Identifier: BSD-2-Clause

package dropin

import (
	"bytes"
	"encoding/binary"
	"io"
	"os"
	"os/exec"
)

// Without returns the reason why a Linux program does not load the libraries, or "". It does not report missing
// programs, and does not examine interpreters of scripts.
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
		return "setuid or setgid program; the loader ignores LD_LIBRARY_PATH"
	case static(path):
		return "statically linked"
	}
	return ""
}

// static reports whether a file is an ELF program without an interpreter.
func static(path string) bool {
	const (
		interpreter  = 3 // PT_INTERP
		fixed        = 2 // ET_EXEC
		independent  = 3 // ET_DYN, PIE: and the loader itself
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
