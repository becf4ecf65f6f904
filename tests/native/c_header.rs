//! A reader for include/deep_ep.h: functions, structs and enums with their comments.

#[derive(Debug, Default)]
pub struct Header {
    pub functions: Vec<Item>,
    pub structs: Vec<Item>,
    pub enums: Vec<Item>,
    pub macros: Vec<(String, String)>,
}

/// A function, struct or enum.
#[derive(Debug, Default)]
pub struct Item {
    pub name: String,
    /// The comment before it without its stars; empty when there is none.
    pub comment: String,
    /// Fields or enumerators.
    pub members: Vec<Member>,
}

#[derive(Debug, Default, Clone, PartialEq)]
pub struct Member {
    pub name: String,
    /// The type of a field, the value of an enumerator.
    pub kind: String,
    pub comment: String,
}

pub fn read(text: &str) -> Header {
    let mut header = Header::default();
    let mut comment = String::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if line.starts_with("/**") {
            comment = read_comment(line, &mut lines);
            continue;
        }
        if let Some(rest) = line.strip_prefix("#define DEEP_EP_") {
            if let Some((name, value)) = rest.split_once(' ') {
                header.macros.push((format!("DEEP_EP_{name}"), value.to_string()));
            }
        } else if line == "DEEP_EP_API" {
            let mut signature = String::new();
            while !signature.contains(';') {
                signature += lines.next().unwrap_or(";");
            }
            let before = signature.split('(').next().unwrap_or_default();
            let name = before.rsplit([' ', '*']).next().unwrap_or_default().to_string();
            header.functions.push(Item { name, comment: std::mem::take(&mut comment), members: vec![] });
        } else if line.starts_with("typedef struct {") {
            let (members, end) = read_members(&mut lines, "}");
            let name = end.trim_start_matches("} ").trim_end_matches(';').to_string();
            header.structs.push(Item { name, comment: std::mem::take(&mut comment), members });
        } else if let Some(name) = line.strip_prefix("enum ") {
            let name = name.trim_end_matches(" {").to_string();
            for line in lines.by_ref() {
                if line.ends_with('{') {
                    break;
                }
            }
            let (members, _) = read_members(&mut lines, "};");
            header.enums.push(Item { name, comment: std::mem::take(&mut comment), members });
        }
        if !line.is_empty() {
            comment.clear();
        }
    }
    header
}

/// The rest of a comment that begins with `first`.
fn read_comment<'a>(first: &str, lines: &mut impl Iterator<Item = &'a str>) -> String {
    let mut text = String::new();
    let mut line = first.trim().trim_start_matches("/**");
    loop {
        let end = line.contains("*/");
        let words = line.trim().trim_end_matches("*/").trim_start_matches('*');
        text += words.strip_prefix(' ').unwrap_or(words);
        text += "\n";
        if end {
            return text.trim().to_string();
        }
        match lines.next() {
            Some(next) => line = next,
            None => return text,
        }
    }
}

fn read_members<'a>(lines: &mut impl Iterator<Item = &'a str>, end: &str) -> (Vec<Member>, &'a str) {
    let mut members = Vec::new();
    let mut comment = String::new();
    while let Some(line) = lines.next() {
        if line.starts_with(end) {
            return (members, line);
        }
        let line = line.trim();
        if line.starts_with("/**") {
            comment = read_comment(line, lines);
        } else if let Some((name, value)) = line.trim_end_matches(',').split_once(" = ") {
            members.push(Member {
                name: name.into(),
                kind: value.into(),
                comment: std::mem::take(&mut comment),
            });
        } else if let Some(field) = line.strip_suffix(';') {
            let declared = field.split('[').next().unwrap_or_default();
            let at = declared.rfind([' ', '*']).map_or(0, |at| at + 1);
            members.push(Member {
                name: declared[at..].into(),
                kind: declared[..at].trim().into(),
                comment: std::mem::take(&mut comment),
            });
        }
    }
    (members, "")
}
