(component (component $a (component $b (core module $m (func (export "f") (result i32) i32.const 1)) (core instance (instantiate $m)))) (instance (instantiate $a)) (instance (instantiate $a)))
