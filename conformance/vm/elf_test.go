// SPDX-License-Identifier: BSD-2-Clause

package vm

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// elfFile describes a minimal ELF file for tests.
type elfFile struct {
	machine elf.Machine // amd64 if 0
	modinfo string      // .modinfo section of a kernel module
	interp  string      // loader of the program
	needed  []string    // shared libraries
}

func (e elfFile) encode(t *testing.T) []byte {
	t.Helper()
	type section struct {
		name string
		kind elf.SectionType
		link uint32
		data []byte
	}
	names, dynamic := []byte{0}, []byte{}
	for _, n := range e.needed {
		dynamic = binary.LittleEndian.AppendUint64(dynamic, uint64(elf.DT_NEEDED))
		dynamic = binary.LittleEndian.AppendUint64(dynamic, uint64(len(names)))
		names = append(append(names, n...), 0)
	}
	dynamic = append(dynamic, make([]byte, 16)...)
	sections := []section{
		{name: ".modinfo", kind: elf.SHT_PROGBITS, data: []byte(e.modinfo)},
		{name: ".dynstr", kind: elf.SHT_STRTAB, data: names},
		{name: ".dynamic", kind: elf.SHT_DYNAMIC, link: 2, data: dynamic},
		{name: ".shstrtab", kind: elf.SHT_STRTAB},
	}
	labels := []byte{0}
	headers := []elf.Section64{{}}
	const headSize, progSize = 64, 56
	interp := append([]byte(e.interp), 0)
	body := append([]byte{}, interp...)
	for i, s := range sections {
		name := uint32(len(labels))
		labels = append(append(labels, s.name...), 0)
		if i == len(sections)-1 {
			s.data = labels
		}
		headers = append(headers,
			elf.Section64{Name: name, Type: uint32(s.kind), Off: uint64(headSize + progSize + len(body)),
				Size: uint64(len(s.data)), Link: s.link})
		body = append(body, s.data...)
	}
	head := elf.Header64{
		Type: uint16(elf.ET_DYN), Machine: uint16(elf.EM_X86_64), Version: 1, Phoff: headSize,
		Shoff:  uint64(headSize + progSize + len(body)),
		Ehsize: headSize, Phentsize: progSize, Shentsize: 64, Shnum: uint16(len(headers)),
		Shstrndx: uint16(len(headers) - 1),
	}
	copy(head.Ident[:], "\x7fELF\x02\x01\x01")
	if e.machine != 0 {
		head.Machine = uint16(e.machine)
	}
	prog := elf.Prog64{Off: headSize + progSize, Filesz: uint64(len(interp))}
	if e.interp != "" {
		head.Phnum, prog.Type = 1, uint32(elf.PT_INTERP)
	}
	var b bytes.Buffer
	for _, part := range []any{head, prog, body, headers} {
		require.NoError(t, binary.Write(&b, binary.LittleEndian, part))
	}
	return b.Bytes()
}

// write writes the file to name below dir, and creates its parent directories.
func (e elfFile) write(t *testing.T, dir, name string) string {
	t.Helper()
	return put(t, dir, name, e.encode(t))
}

func put(t *testing.T, dir, name string, data []byte) string {
	t.Helper()
	file := filepath.Join(dir, filepath.FromSlash(name))
	require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o755))
	require.NoError(t, os.WriteFile(file, data, 0o755))
	return file
}
