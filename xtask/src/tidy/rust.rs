//! What the syntax of the sources says: lengths, unsafe code, string literals.

use super::{Finding, SourceFile};
use proc_macro2::Span;
use std::collections::BTreeSet;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};

/// Rooms that may hold unsafe code.
const UNSAFE_ROOMS: [&str; 3] = ["nodeagent/reactor/", "nodeagent/device/", "nodeagent/frontend/"];

/// Everything that was found in all Rust files.
#[derive(Default)]
pub(crate) struct Rust {
    /// Unsafe code where it may not be, and files that don't parse.
    pub(crate) findings: Vec<Finding>,
    /// Lines of each file that aren't tests.
    pub(crate) files: Vec<(String, usize)>,
    /// Functions that aren't tests: path, line, name, lines.
    pub(crate) functions: Vec<(String, usize, String, usize)>,
    /// String literals: path, line, text.
    pub(crate) literals: Vec<(String, usize, String)>,
}

pub(crate) fn parse(files: &[SourceFile]) -> Rust {
    let mut rust = Rust::default();
    let mut parsed = Vec::new();
    for file in files.iter().filter(|file| file.is_rust()) {
        let Some(text) = &file.text else { continue };
        match syn::parse_file(text) {
            Ok(syntax) => parsed.push((file, text, syntax)),
            Err(error) => rust.findings.push(file.finding(error.span().start().line, format!("does not parse: {error}"))),
        }
    }
    let test_modules: BTreeSet<String> =
        parsed.iter().flat_map(|(file, _, syntax)| test_modules_of(&file.path, &syntax.items)).collect();
    for (file, text, syntax) in &parsed {
        let mut walk =
            Walk { file, rust: &mut rust, test_lines: 0, is_test: is_test_file(&file.path, &test_modules), inside: Vec::new() };
        walk.visit_file(syntax);
        let (is_test, test_lines) = (walk.is_test, walk.test_lines);
        if !is_test {
            rust.files.push((file.path.clone(), text.lines().count().saturating_sub(test_lines)));
        }
    }
    rust
}

fn is_test_file(path: &str, test_modules: &BTreeSet<String>) -> bool {
    let stem = path.trim_end_matches(".rs");
    path.contains("/tests/")
        || path.contains("/benches/")
        || path.ends_with("/tests.rs")
        || test_modules
            .iter()
            .any(|module| stem == module || stem.strip_prefix(module.as_str()).is_some_and(|rest| rest.starts_with('/')))
}

/// Modules in files of their own that are compiled for tests only: their paths without the ending.
fn test_modules_of(path: &str, items: &[syn::Item]) -> Vec<String> {
    let stem = path.trim_end_matches(".rs");
    let (folder, name) = stem.rsplit_once('/').unwrap_or(("", stem));
    let inside = if ["lib", "main", "mod"].contains(&name) { folder } else { stem };
    items
        .iter()
        .filter_map(|item| match item {
            syn::Item::Mod(module) if module.content.is_none() && is_test_only(&module.attrs) => {
                Some(format!("{inside}/{}", module.ident))
            }
            _ => None,
        })
        .collect()
}

fn is_test_only(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| match &attribute.meta {
        syn::Meta::Path(path) => path.segments.last().is_some_and(|segment| segment.ident == "test"),
        syn::Meta::List(list) => {
            list.path.is_ident("cfg")
                && list
                    .tokens
                    .clone()
                    .into_iter()
                    .any(|token| matches!(&token, proc_macro2::TokenTree::Ident(ident) if ident == "test"))
        }
        syn::Meta::NameValue(_) => false,
    })
}

struct Walk<'a> {
    file: &'a SourceFile,
    rust: &'a mut Rust,
    test_lines: usize,
    is_test: bool,
    /// Types and traits around the function being looked at.
    inside: Vec<String>,
}

impl Walk<'_> {
    fn function(&mut self, name: &syn::Ident, span: Span) {
        if self.is_test {
            return;
        }
        let lines = span.end().line + 1 - span.start().line;
        let name = self.inside.iter().cloned().chain([name.to_string()]).collect::<Vec<_>>().join("::");
        self.rust.functions.push((self.file.path.clone(), span.start().line, name, lines));
    }

    fn is_unsafe(&mut self, span: Span) {
        if !UNSAFE_ROOMS.iter().any(|room| self.file.path.starts_with(room)) {
            let rooms = UNSAFE_ROOMS.map(|room| room.trim_end_matches('/')).join(", ");
            self.rust.findings.push(self.file.finding(span.start().line, format!("unsafe code belongs in {rooms} only")));
        }
    }

    /// Walks what only tests see.
    fn as_test(&mut self, span: Span, walk: impl FnOnce(&mut Self)) {
        if !self.is_test {
            self.test_lines += span.end().line + 1 - span.start().line;
        }
        let before = std::mem::replace(&mut self.is_test, true);
        walk(self);
        self.is_test = before;
    }
}

impl<'ast> Visit<'ast> for Walk<'_> {
    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        if is_test_only(&item.attrs) {
            self.as_test(item.span(), |walk| visit::visit_item_mod(walk, item));
        } else {
            visit::visit_item_mod(self, item);
        }
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        if let Some(token) = &item.sig.unsafety {
            self.is_unsafe(token.span);
        }
        if is_test_only(&item.attrs) {
            return self.as_test(item.span(), |walk| visit::visit_item_fn(walk, item));
        }
        self.function(&item.sig.ident, item.sig.span().join(item.block.span()).unwrap_or_else(|| item.span()));
        visit::visit_item_fn(self, item);
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        if let Some(token) = &item.unsafety {
            self.is_unsafe(token.span);
        }
        let name = match &*item.self_ty {
            syn::Type::Path(path) => path.path.segments.last().map(|segment| segment.ident.to_string()),
            _ => None,
        };
        self.inside.push(name.unwrap_or_else(|| "impl".to_owned()));
        if is_test_only(&item.attrs) {
            self.as_test(item.span(), |walk| visit::visit_item_impl(walk, item));
        } else {
            visit::visit_item_impl(self, item);
        }
        self.inside.pop();
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        if let Some(token) = &item.sig.unsafety {
            self.is_unsafe(token.span);
        }
        self.function(&item.sig.ident, item.sig.span().join(item.block.span()).unwrap_or_else(|| item.span()));
        visit::visit_impl_item_fn(self, item);
    }

    fn visit_item_trait(&mut self, item: &'ast syn::ItemTrait) {
        if let Some(token) = &item.unsafety {
            self.is_unsafe(token.span);
        }
        self.inside.push(item.ident.to_string());
        visit::visit_item_trait(self, item);
        self.inside.pop();
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        if item.default.is_some() {
            self.function(&item.sig.ident, item.span());
        }
        visit::visit_trait_item_fn(self, item);
    }

    fn visit_expr_unsafe(&mut self, block: &'ast syn::ExprUnsafe) {
        self.is_unsafe(block.unsafe_token.span);
        visit::visit_expr_unsafe(self, block);
    }

    fn visit_attribute(&mut self, attribute: &'ast syn::Attribute) {
        if let syn::Meta::List(list) = &attribute.meta
            && list.tokens.clone().into_iter().any(|token| token.to_string() == "unsafe_code")
            && !list.path.is_ident("forbid")
            && !list.path.is_ident("deny")
        {
            self.is_unsafe(attribute.span());
        }
        visit::visit_attribute(self, attribute);
    }

    fn visit_lit_str(&mut self, literal: &'ast syn::LitStr) {
        self.rust.literals.push((self.file.path.clone(), literal.span().start().line, literal.value()));
    }
}

#[cfg(test)]
mod tests {
    use super::super::source;
    use super::*;

    #[test]
    fn tests_are_not_counted_wherever_they_are() {
        let inline = "fn a() {\n}\n#[cfg(test)]\nmod tests {\n    fn b() {\n    }\n}\n";
        let files = [
            source("x/src/lib.rs", "#[cfg(test)]\nmod model;\nmod inline;\n"),
            source("x/src/inline.rs", inline),
            source("x/src/model.rs", "fn long() {}"),
            source("x/src/model/fake.rs", "fn long() {}"),
            source("x/src/models.rs", "fn counted() {}"),
            source("x/tests/whole.rs", "fn long() {}"),
        ];
        let rust = parse(&files);
        let paths: Vec<_> = rust.files.iter().map(|(path, lines)| (path.as_str(), *lines)).collect();
        assert_eq!(paths, [("x/src/lib.rs", 1), ("x/src/inline.rs", 2), ("x/src/models.rs", 1)]);
        let functions: Vec<_> = rust.functions.iter().map(|(_, _, name, lines)| (name.as_str(), *lines)).collect();
        assert_eq!(functions, [("a", 2), ("counted", 1)]);
    }

    #[test]
    fn unsafe_code_is_found_in_every_form() {
        let text = "unsafe fn a() {}\nunsafe impl Send for X {}\nfn b() {\n    unsafe { c() }\n}\n#![expect(unsafe_code, reason = \"x\")]";
        let text = format!("#![allow(unsafe_code)]\n{}", text.replace("#![expect(unsafe_code, reason = \"x\")]", ""));
        let lines = |path| parse(&[source(path, &text)]).findings.iter().map(|finding| finding.line).collect::<Vec<_>>();
        assert_eq!(lines("csi/src/node.rs"), [1, 2, 3, 5]);
        assert!(lines("nodeagent/device/src/ring.rs").is_empty());
    }

    #[test]
    fn methods_are_named_by_their_type() {
        let rust = parse(&[source("x/src/a.rs", "impl<T> Foo<T> {\n    fn new() {\n    }\n}\n")]);
        assert_eq!(rust.functions, [("x/src/a.rs".to_owned(), 2, "Foo::new".to_owned(), 2)]);
    }
}
