//go:build !unix && !windows

package runtime

var errNoMapping = &NotSupportedError{Missing: "this system cannot map memory outside Go's heap"}

func mapMemory(int, MapOptions) ([]byte, error) { return nil, errNoMapping }
func unmapMemory([]byte) error                  { return nil }
func mapGuarded(int, int) (*Mapping, error)     { return nil, errNoMapping }
func reserve(uintptr) (uintptr, error)          { return 0, errNoMapping }
func commit(address, size uintptr) error        { return errNoMapping }
