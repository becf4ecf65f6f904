package deepep

import "sync"

// gate keeps calls on one object of the library apart as deep_ep.h asks for, and away from a closed object.
type gate struct {
	name   string
	use    sync.Mutex   // held by the one call with exclusive use
	life   sync.RWMutex // read-held by calls that may run beside any other, held by close
	closed bool         // under both
}

func (g *gate) gone() error {
	return &Error{Status: StatusInvalidState, Msg: "the " + g.name + " is closed"}
}

// exclusive begins a call with exclusive use; leave ends it.
func (g *gate) exclusive() error {
	if !g.use.TryLock() {
		return &Error{Status: StatusConcurrentUse, Msg: "another call uses the " + g.name + "; one at a time"}
	}
	if g.closed {
		g.use.Unlock()
		return g.gone()
	}
	return nil
}

func (g *gate) leave() { g.use.Unlock() }

// beside begins a call that may run beside any other; leaveBeside ends it.
func (g *gate) beside() error {
	g.life.RLock()
	if g.closed {
		g.life.RUnlock()
		return g.gone()
	}
	return nil
}

func (g *gate) leaveBeside() { g.life.RUnlock() }

// close runs destroy once, unless another call uses the object; it may be tried again after an error.
func (g *gate) close(destroy func() error) error {
	if !g.use.TryLock() {
		return &Error{Status: StatusConcurrentUse, Msg: "another call uses the " + g.name + "; close it afterwards"}
	}
	defer g.use.Unlock()
	g.life.Lock()
	defer g.life.Unlock()
	if g.closed {
		return nil
	}
	if err := destroy(); err != nil {
		return err
	}
	g.closed = true
	return nil
}
