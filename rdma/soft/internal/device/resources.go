package device

// Resources counts what programs hold of the fabric: "ctx" (open devices), "pd", "mr", "mw", "cq", "qp", "srq", "ah",
// "dm", "buf", "xrcd", "td", "channel", "cm_id", "event channel" and "address info". What is 0 is not in it.
func (f *Fabric) Resources() map[string]int {
	counts := map[string]int{}
	all.mu.RLock()
	defer all.mu.RUnlock()
	for _, object := range all.objects {
		if kind, of := resource(object); of == f {
			counts[kind]++
		}
	}
	return counts
}

func resource(object any) (kind string, of *Fabric) {
	switch o := object.(type) {
	case *context:
		return "ctx", o.fabric()
	case *pd:
		return "pd", o.fabric()
	case *region:
		return "mr", o.fabric()
	case *mw:
		return "mw", o.fabric()
	case *cq:
		return "cq", o.fabric()
	case *qp:
		return "qp", o.fabric()
	case *openedQP:
		return "qp", o.fabric()
	case *srq:
		return "srq", o.fabric()
	case *ah:
		return "ah", o.fabric()
	case *dm:
		return "dm", o.fabric()
	case *buf:
		return "buf", o.fabric()
	case *xrcd:
		return "xrcd", o.fabric()
	case *td:
		return "td", o.fabric()
	case *channel:
		return "channel", o.fabric()
	case Managed:
		return o.Resource()
	}
	return "", nil
}
